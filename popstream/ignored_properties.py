"""Settings of Kafka's clients that a file shared with other programs may have, and that popstream chooses itself.

Those of producers, consumers and administrators in Kafka 3.9 to 4.2, but for what names Java classes that work on each
record (`interceptor.classes`), or from which values of the file would come (`config.providers`).
"""

__all__ = ["IGNORED"]

_CONNECTIONS = """
client.id client.rack connections.max.idle.ms default.api.timeout.ms metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy receive.buffer.bytes reconnect.backoff.max.ms
reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms send.buffer.bytes
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
"""
_LOGINS = """
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
"""
_METRICS = """
auto.include.jmx.reporter enable.metrics.push metric.reporters metrics.num.samples metrics.recording.level
metrics.sample.window.ms
"""
_PRODUCERS = """
acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type compression.zstd.level
delivery.timeout.ms enable.idempotence key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
max.request.size metadata.max.idle.ms partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
partitioner.class partitioner.ignore.keys transaction.timeout.ms transactional.id value.serializer
"""
_CONSUMERS = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs enable.auto.commit
exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol
group.remote.assignor heartbeat.interval.ms isolation.level key.deserializer max.partition.fetch.bytes
max.poll.interval.ms max.poll.records partition.assignment.strategy session.timeout.ms share.acknowledgement.mode
value.deserializer
"""
IGNORED = frozenset(f"{_CONNECTIONS} {_LOGINS} {_METRICS} {_PRODUCERS} {_CONSUMERS}".split())
"""Their names."""
