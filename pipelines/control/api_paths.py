"""Where the HTTP API answers the requests that the control socket answers, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pipelines.build_consume_queue.queue_view import QueueRequest
from pipelines.control.messages import PoliciesRequest, StatusRequest
from pipelines.control.page_messages import LanesRequest, QueuesRequest, RatesRequest
from popstream.wire.base_errors import Invalid

if TYPE_CHECKING:
    from pipelines.control.messages import Request

__all__ = ["API_PATHS", "API_ROOT", "query_of"]

API_ROOT = "/api/v1"

API_PATHS: dict[type[msgspec.Struct], str] = {
    StatusRequest: f"{API_ROOT}/status",
    PoliciesRequest: f"{API_ROOT}/policies",
    QueueRequest: f"{API_ROOT}/queue",
    LanesRequest: f"{API_ROOT}/lanes",
    QueuesRequest: f"{API_ROOT}/queues",
    RatesRequest: f"{API_ROOT}/rates",
}


def query_of(request: Request) -> tuple[str, dict[str, str]]:
    """Return the path of a request, and its parameters without those that have their defaults.

    >>> query_of(StatusRequest(topic="orders", token="secret"))
    ('/api/v1/status', {'topic': 'orders'})

    Raises:
        Invalid: The API does not serve it.
    """
    path = API_PATHS.get(type(request))
    if path is None:
        what = str(request.__struct_config__.tag)
        message = f"the API has no {what}: run the command on the machine of the job, with --folder"
        raise Invalid(message)
    defaults = {field.name: field.default for field in msgspec.structs.fields(request)}
    chosen = {
        name: str(value)
        for name, value in msgspec.structs.asdict(request).items()
        if name != "token" and value != defaults[name]
    }
    return path, chosen
