"""Asks for all queues or rules by several requests, as the API answers with a page at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pipelines.control.lane_views import LANES_SHOWN
from pipelines.control.messages import Policies, PoliciesRequest, Status, StatusRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pipelines.control.lane_views import QueueView
    from pipelines.control.messages import Request

__all__ = ["by_pages"]

Reply = TypeVar("Reply")

PAGE_LANES = LANES_SHOWN


def by_pages(request: Request, get: Callable[[Request], Reply]) -> Reply:
    """Return the answer to a request, put together from those to requests for pages.

    Lanes that come or go meanwhile may be missing, or there twice.

    Args:
        request: The request. One that is not for queues or rules is asked as it is.
        get: Asks for a page.
    """
    if not isinstance(request, StatusRequest | PoliciesRequest) or request.limit == 0:
        return get(request)
    left = request.limit
    skip = request.skip
    found: list[Reply] = []
    while True:
        size = PAGE_LANES if left is None else min(left, PAGE_LANES)
        page = get(msgspec.structs.replace(request, limit=size, skip=skip))
        assert isinstance(page, Status | Policies)
        found.append(page)
        skip += size
        left = None if left is None else left - size
        if left == 0 or not page.is_cut:
            whole: Reply = _joined(found)
            return whole


def _joined(pages: Sequence[Any]) -> Any:  # noqa: ANN401 - all Policies or all Status
    last = pages[-1]
    if isinstance(last, Policies):
        return Policies([policy for page in pages for policy in page.policies], last.is_cut)
    queues: list[QueueView] = []
    for page in pages:
        for queue in page.queues:
            if queues and (queues[-1].topic, queues[-1].queue_id) == (queue.topic, queue.queue_id):
                queues[-1] = msgspec.structs.replace(queues[-1], lanes=[*queues[-1].lanes, *queue.lanes])
            else:
                queues.append(queue)
    return msgspec.structs.replace(last, queues=queues)
