"""From the publisher's span through the daemon to the handler's: one trace."""

from __future__ import annotations

import json

from opentelemetry.sdk.trace import TracerProvider

from penstock.publishing.publish import publish
from tests.consumers.conftest import TOPIC, Connection, StartDaemon
from tests.consumers.process import until


def test_a_trace_goes_on_in_the_handler(
    log: Connection, database_url: str, daemons: StartDaemon
) -> None:
    """Guard: an event that was published outside of a span begins a trace of its own."""
    handler = ("--consumer", "billing=tests.consumers.traced:handle")
    daemon = daemons(database_url, "--roles", "sequencer,consumers", "--processes", "2", *handler)
    with TracerProvider().get_tracer("shop").start_as_current_span("ordered") as ordered:
        publish(log, TOPIC, b"1", partition=0)
    publish(log, TOPIC, b"2", partition=0)
    until(lambda: len(daemon.handled()) == 4, "two spans of each event")
    spans = [json.loads(line) for line in daemon.handled()]
    billed, processed, alone, of_nobody = spans
    publisher = ordered.get_span_context()
    assert processed == [f"process {TOPIC}", publisher.trace_id, processed[2], publisher.span_id]
    assert billed == ["billed", publisher.trace_id, billed[2], processed[2]]
    assert of_nobody[3] is None
    assert alone[1] == of_nobody[1] != publisher.trace_id
