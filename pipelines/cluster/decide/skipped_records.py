"""Refuses a micro-batch that begins above what the state of its shard has decided.

Spark plans it by the offsets in the checkpoint, and reads the state beside them. They fit together unless two drivers
have written them. Offsets without a record, as of transactions, look alike: so the log is read in between, but only
where a shard is loaded, as one that stays in memory was decided by this driver.
"""

from contextlib import closing

from pipelines.recovery.ops_log import OpsPartitionReader
from popstream.kafka_connection import KafkaConnection
from popstream.wire.base_errors import Corrupt

__all__ = ["require_no_records_between"]


def require_no_records_between(
    connection: KafkaConnection, topic: str, partition: int, decided: int, begin: int
) -> None:
    """Check that a partition has no record from the first undecided offset to the first one of a micro-batch.

    Raises:
        Corrupt: It has.
        LostRecords: The log begins after `decided`.
        Unavailable: Kafka does not answer.
    """
    if begin <= decided:
        return
    with closing(OpsPartitionReader(connection, topic, partition)) as reader:
        for record in reader.between(decided, begin):
            message = (
                f"the micro-batch at {topic}/{partition}/{begin} begins above what its shard has decided, which is up"
                f" to {decided}: the record at {record.offset} would be left out. Two drivers have written the"
                " checkpoint: begin a new one"
            )
            raise Corrupt(message, subject=f"{topic}/{partition}")
