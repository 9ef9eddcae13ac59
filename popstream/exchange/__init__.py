"""Operations and their answers: sent, matched, sent again; carried over Kafka, or in memory for tests."""
