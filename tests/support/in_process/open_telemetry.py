"""The spans that a test makes: of OpenTelemetry's SDK where it is installed, otherwise of a stand-in for its API.

The stand-in has what popstream calls, no more. Its spans have the attributes by which tests look at those of the SDK.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import itertools
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

__all__ = ["HAS_SDK", "make_provider"]

HAS_SDK = find_spec("opentelemetry") is not None and find_spec("opentelemetry.sdk") is not None


def make_provider(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """Return a tracer provider, and the list that it adds each span to when the span ends."""
    ended: list[Any] = []
    if HAS_SDK:
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider  # noqa: PLC0415 - where it is installed

        processor = SpanProcessor()
        monkeypatch.setattr(processor, "on_end", ended.append)
        provider = TracerProvider()
        provider.add_span_processor(processor)
        return provider, ended
    for name, module in _modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "popstream.opentelemetry", raising=False)
    monkeypatch.setattr(_PROVIDER, "ended", ended)
    return _PROVIDER, ended


class SpanKind(enum.Enum):
    PRODUCER = 3
    CONSUMER = 4


class StatusCode(enum.Enum):
    UNSET = 0
    ERROR = 2


_PROVIDER = SimpleNamespace(ended=[])
"""The tracer provider of the process."""
_ids = itertools.count(1)
_current: contextvars.ContextVar[Any] = contextvars.ContextVar("span", default=None)


class Span:
    def __init__(self, name: str, context: Any, kind: SpanKind, attributes: dict[str, Any], links: list[Any]) -> None:
        parent = get_current_span(context)
        self.name, self.kind, self.attributes, self.links = name, kind, dict(attributes), links
        self.parent = parent.context if parent.context.is_valid else None
        trace_id = self.parent.trace_id if self.parent is not None else next(_ids)
        self.context = SimpleNamespace(trace_id=trace_id, span_id=next(_ids), is_valid=True)
        self.status = SimpleNamespace(status_code=StatusCode.UNSET)
        self.events: list[Any] = []

    def get_span_context(self) -> Any:
        return self.context

    def set_attribute(self, name: str, value: object) -> None:
        self.attributes[name] = value

    def set_attributes(self, attributes: dict[str, Any]) -> None:
        self.attributes |= attributes

    def set_status(self, status: Any) -> None:
        self.status = status

    def record_exception(self, error: BaseException) -> None:
        self.events.append(SimpleNamespace(name="exception", attributes={"exception.message": str(error)}))

    def end(self) -> None:
        self.ended.append(self)  # type: ignore[attr-defined]


class Tracer:
    def __init__(self, provider: Any) -> None:
        self._ended = provider.ended

    def start_span(
        self, name: str, context: Any = None, kind: Any = None, attributes: Any = None, links: Any = ()
    ) -> Span:
        span = Span(name, context, kind, attributes, list(links))
        span.ended = self._ended  # type: ignore[attr-defined]
        return span

    @contextlib.contextmanager
    def start_as_current_span(self, name: str, context: Any = None, **options: Any) -> Iterator[Span]:
        span = self.start_span(name, context, **options)
        token = _current.set(span)
        try:
            yield span
        except Exception as error:
            span.record_exception(error)
            span.set_status(SimpleNamespace(status_code=StatusCode.ERROR))
            raise
        finally:
            _current.reset(token)
            span.end()


def get_current_span(context: Any = None) -> Any:
    span = _current.get() if context is None else context
    if span is None or not hasattr(span, "context"):
        nowhere = SimpleNamespace(trace_id=0, span_id=0, is_valid=False)
        return SimpleNamespace(context=nowhere, get_span_context=lambda: nowhere)
    return span


def inject(carrier: Any, context: Any, setter: Any) -> None:
    context = get_current_span(context).context
    setter.set(carrier, "traceparent", f"00-{context.trace_id:032x}-{context.span_id:016x}-01")


def extract(carrier: Any, getter: Any) -> Any:
    found = getter.get(carrier, "traceparent")
    if not found:
        return SimpleNamespace()
    _, trace_id, span_id, _ = found[0].split("-")
    context = SimpleNamespace(trace_id=int(trace_id, 16), span_id=int(span_id, 16), is_valid=True)
    return SimpleNamespace(context=context, get_span_context=lambda: context)


def _modules() -> dict[str, Any]:
    api: Any = ModuleType("opentelemetry")
    api.trace, api.propagate = ModuleType("opentelemetry.trace"), ModuleType("opentelemetry.propagate")
    api.trace.__dict__.update(
        SpanKind=SpanKind,
        StatusCode=StatusCode,
        Status=lambda code, _text=None: SimpleNamespace(status_code=code),
        Link=lambda context: SimpleNamespace(context=context),
        get_current_span=get_current_span,
        set_span_in_context=lambda span: span,
        get_tracer=lambda _name, _version, provider: Tracer(provider or _PROVIDER),
    )
    api.propagate.__dict__.update(inject=inject, extract=extract)
    return {"opentelemetry": api, "opentelemetry.trace": api.trace, "opentelemetry.propagate": api.propagate}
