"""A handler of an application that uses OpenTelemetry; its spans go to the test's journal."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from penstock.records import Event
from tests.consumers.handlers import JOURNAL


class ToJournal(SpanExporter):
    """A line for each span: name, trace, span and parent."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ[JOURNAL]).open("a") as journal:
            for span in spans:
                assert span.context is not None
                parent = span.parent.span_id if span.parent else None
                found = [span.name, span.context.trace_id, span.context.span_id, parent]
                journal.write(json.dumps(found) + "\n")
        return SpanExportResult.SUCCESS


_provider = TracerProvider()
_provider.add_span_processor(SimpleSpanProcessor(ToJournal()))
trace.set_tracer_provider(_provider)


def handle(event: Event) -> None:
    """A span of its own inside the daemon's."""
    with trace.get_tracer(__name__).start_as_current_span("billed"):
        pass
