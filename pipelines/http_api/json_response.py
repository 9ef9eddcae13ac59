"""Answers as JSON: structs by msgspec, and errors of this project with the status that says what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from pipelines.control.messages import Failure
from popstream.wire.base_errors import Corrupt, Fenced, PopstreamError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JsonResponse", "failed"]


class JsonResponse(Response):
    """An answer of the API, which nothing on the way may store."""

    media_type = "application/json"

    def __init__(self, content: object, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(
            msgspec.json.encode(content), status_code, headers={"Cache-Control": "no-store", **(headers or {})}
        )


def failed(error: PopstreamError) -> JsonResponse:
    """Return the answer for an error: 400 for a request that cannot work, 409, 500 or 503 otherwise."""
    status = 400
    if isinstance(error, Unavailable):
        status = 503
    elif isinstance(error, Corrupt):
        status = 500
    elif isinstance(error, Fenced):
        status = 409
    return JsonResponse(Failure.of(error), status)
