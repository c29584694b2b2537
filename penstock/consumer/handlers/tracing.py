"""A span around each handler, where OpenTelemetry is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from penstock.publishing.tracing import API, NAMES, propagator


def around_handlers(subscription: str, *, is_async: bool) -> Callable[..., Any] | None:
    """A middleware with a span for each event or batch; None where OpenTelemetry is not in use.

    The span of an event continues its publisher's trace.  That of a batch links to those traces.
    """
    if sys.modules.get(API) is None:
        return None
    from opentelemetry import trace

    tracer = trace.get_tracer("penstock")

    def span(delivered: Any) -> AbstractContextManager[Any]:
        events = delivered.events
        contexts = [propagator().extract(_traced(event)) for event in events]
        spoken = [trace.get_current_span(context).get_span_context() for context in contexts]
        found: AbstractContextManager[Any] = tracer.start_as_current_span(
            f"process {events[0].topic}",
            context=contexts[0] if events == [delivered] else None,
            kind=trace.SpanKind.CONSUMER,
            links=[trace.Link(each) for each in spoken if each.is_valid],
            attributes={
                "messaging.system": "penstock",
                "messaging.operation.type": "process",
                "messaging.destination.name": events[0].topic,
                "messaging.destination.partition.id": str(events[0].partition),
                "messaging.consumer.group.name": subscription,
                "messaging.batch.message_count": len(events),
                "penstock.sequence": events[0].sequence,
            },
        )
        return found

    def around(delivered: Any, call_next: Callable[[Any], Any]) -> Any:
        with span(delivered):
            return call_next(delivered)

    async def around_async(delivered: Any, call_next: Callable[[Any], Any]) -> Any:
        with span(delivered):
            return await call_next(delivered)

    return around_async if is_async else around


def _traced(event: Any) -> dict[str, str]:
    headers = event.headers
    return {name: str(headers[name]) for name in NAMES if name in headers}
