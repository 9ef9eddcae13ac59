"""Operations and their answers: matched, sent again, carried over Kafka or in memory."""
