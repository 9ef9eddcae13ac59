"""Translates settings of kafka-python to those of librdkafka."""

from __future__ import annotations

from typing import Any

from popstream.wire.base_errors import Invalid

__all__ = ["translate"]

_NAMES = {
    "client_dns_lookup": "client.dns.lookup",
    "client_id": "client.id",
    "client_rack": "client.rack",
    "connections_max_idle_ms": "connections.max.idle.ms",
    "metadata_max_age_ms": "topic.metadata.refresh.interval.ms",
    "receive_buffer_bytes": "socket.receive.buffer.bytes",
    "receive_message_max_bytes": "receive.message.max.bytes",
    "reconnect_backoff_max_ms": "reconnect.backoff.max.ms",
    "reconnect_backoff_ms": "reconnect.backoff.ms",
    "request_timeout_ms": "socket.timeout.ms",
    "retry_backoff_ms": "retry.backoff.ms",
    "sasl_kerberos_service_name": "sasl.kerberos.service.name",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_password": "sasl.password",
    "sasl_plain_username": "sasl.username",
    "security_protocol": "security.protocol",
    "send_buffer_bytes": "socket.send.buffer.bytes",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_check_hostname": "ssl.endpoint.identification.algorithm",
    "ssl_crlfile": "ssl.crl.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
}
_ABOUT_KAFKA_PYTHON_ONLY = frozenset(
    ("bootstrap_timeout_ms", "metric_reporters", "metrics_enabled", "metrics_num_samples", "metrics_sample_window_ms")
)
"""These have no effect on what is read: the metrics of kafka-python, and a time-out that the reader applies itself."""


def translate(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings by their names in librdkafka; those that are None are left to its defaults.

    >>> translate({"security_protocol": "SSL", "ssl_check_hostname": False, "ssl_cafile": None})
    {'security.protocol': 'SSL', 'ssl.endpoint.identification.algorithm': 'none'}

    Raises:
        Invalid: librdkafka has no such settings; `details` names them.
    """
    refused = sorted(settings.keys() - _NAMES.keys() - _ABOUT_KAFKA_PYTHON_ONLY)
    if refused:
        message = "fetch_client='librdkafka' does not know these `kafka` settings: remove them, or use 'kafka-python'"
        raise Invalid(message, subject="kafka", details=refused)
    translated = {_NAMES[name]: value for name, value in settings.items() if name in _NAMES and value is not None}
    if "ssl_check_hostname" in settings:
        translated[_NAMES["ssl_check_hostname"]] = "https" if settings["ssl_check_hostname"] else "none"
    return translated
