"""`popstream release`: release the leases of a client that can no longer do so itself."""

from collections.abc import Sequence

from pipelines.cli.clients.send_and_consume import require_topic
from pipelines.cli.exits import say
from pipelines.cli.printing import counted
from pipelines.cli.target import Target
from popstream import Refused, Transport
from popstream.wire.command import ReturnClient
from popstream.wire.reason import Reason

__all__ = ["run_release"]


def run_release(target: Target, topics: Sequence[str], group: str, client_id: str, *, timeout_ms: int) -> None:
    """Release every lease of the client in all queues of the topics, and cancel its parked pops.

    Raises:
        Invalid: A topic does not exist.
        Refused: A name is out of range.
        Unavailable: Kafka or the job does not answer.
    """
    queues = [(topic, queue_id) for topic in topics for queue_id in range(require_topic(target, topic).partition_count)]
    with Transport(target.client_settings("release")) as transport:
        futures = [
            transport.submit(
                ReturnClient(v=1, topic=topic, queue_id=queue_id, group=group, client_id=client_id),
                timeout_ms=timeout_ms,
            )
            for topic, queue_id in queues
        ]
        answers = [future.result() for future in futures]
    for answer in answers:
        # A queue that was never declared has no leases.
        if answer.reason not in (Reason.OK, Reason.TOPIC_NOT_EXIST):
            raise Refused(answer)
    count = sum(last - first + 1 for answer in answers for first, last in answer.released)
    say(f"{counted(count, 'message')} of {client_id} in {group} released")
