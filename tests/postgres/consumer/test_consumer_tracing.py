"""Spans of handlers, from the publisher's trace on."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock import Message, publish_batch
from penstock.consumer.stream.consumer import Consumer
from penstock.subscriptions import stream
from tests.kit.log import Connection, drain, topic
from tests.kit.stream import STREAM, SUBSCRIPTION


@pytest.mark.parametrize("way", ["handler", "batch_handler", "async"])
def test_a_handler_has_a_span_of_its_publishers_trace(
    connection: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """An event's goes on with the trace, a batch's is linked to it; a failure is recorded."""
    provider, spans = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    topic(connection, 1, STREAM)
    stream.subscribe(connection, SUBSCRIPTION, [STREAM])
    with provider.get_tracer("test").start_as_current_span("publish") as published:
        publish_batch(connection, [Message(STREAM, b"1"), Message(STREAM, b"2")])
    drain(connection)
    inside: list[int] = []

    def handle(_: object) -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    async def handle_async(_: object) -> None:
        await asyncio.sleep(0)
        handle(_)

    given = {"handler": handle_async} if way == "async" else {way: handle}
    assert Consumer(database_url, SUBSCRIPTION, **given).run_until_idle() == 2
    found = [span for span in spans.get_finished_spans() if span.name == f"process {STREAM}"]
    assert [span.context.span_id for span in found] == inside
    context = published.get_span_context()
    assert {link.context.trace_id for span in found for link in span.links} == {context.trace_id}
    parents = {span.parent.span_id if span.parent else None for span in found}
    assert parents == ({None} if way == "batch_handler" else {context.span_id})
    assert (found[0].attributes or {})["messaging.consumer.group.name"] == SUBSCRIPTION
