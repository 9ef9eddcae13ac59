"""The description of the API: an OpenAPI 3.1 document, from the endpoints and their types."""

from __future__ import annotations

import inspect
import re
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec

from pipelines.control.messages import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipelines.http_api.endpoint import Endpoint

__all__ = ["openapi_document"]

_SCHEMAS = "#/components/schemas/"
_STATUSES = {
    "400": "The request cannot work as it is",
    "401": "The token is missing or wrong",
    "403": "It requires a token, and the job has none",
    "409": "Another redrive has begun",
    "500": "Stored data are damaged, or an error that nobody expected",
    "503": "No job runs now, or a service that it needs is away: ask again",
}


def openapi_document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the document, which is JSON but for its encoding."""
    types = [Failure, *(each.reply for each in endpoints), *(each.request for each in endpoints)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_SCHEMAS + "{name}")
    failure, *others = schemas
    replies, requests = others[: len(endpoints)], others[len(endpoints) :]
    paths: dict[str, Any] = {}
    for endpoint, reply, request in zip(endpoints, replies, requests, strict=True):
        component = components[request["$ref"].removeprefix(_SCHEMAS)]
        operation: dict[str, Any] = {
            "operationId": endpoint.path.rpartition("/")[2].replace("-", "_"),
            "summary": endpoint.summary,
            "responses": {
                "200": {"description": "The answer", "content": {"application/json": {"schema": reply}}},
                **{
                    status: {"description": text, "content": {"application/json": {"schema": failure}}}
                    for status, text in _STATUSES.items()
                },
            },
        }
        if endpoint.method == "GET":
            operation["parameters"] = _parameters(endpoint, component)
        else:
            body = {"application/json": {"schema": request}}
            operation["requestBody"] = {"required": True, "content": body}
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    for endpoint, request in zip(endpoints, requests, strict=True):
        if endpoint.method == "GET":
            components.pop(request["$ref"].removeprefix(_SCHEMAS), None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "popstream", "version": metadata.version("popstream"), "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _parameters(endpoint: Endpoint, component: dict[str, Any]) -> list[dict[str, Any]]:
    meanings = _meanings(endpoint.request)
    return [
        {
            "name": field.name,
            "in": "query",
            "required": field.required,
            "description": meanings.get(field.name, ""),
            "schema": component["properties"][field.name],
        }
        for field in endpoint.fields
    ]


def _meanings(kind: type) -> dict[str, str]:
    """Return the meaning of each field by the section `Attributes` of a docstring."""
    _, _, section = inspect.getdoc(kind).partition("Attributes:\n")  # type: ignore[union-attr]
    found = re.findall(r"^    (\w+): ((?:.+)(?:\n {8}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}
