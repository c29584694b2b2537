"""The W3C trace context of the application, when it uses OpenTelemetry.

This module imports OpenTelemetry only after the application has done so.  Without OpenTelemetry or
a current span, tracing adds no cost to publishing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

#: The headers that carry it.
NAMES = frozenset({"traceparent", "tracestate"})

#: The module that an application has imported when it uses OpenTelemetry.
API = "opentelemetry.trace"
_NOTHING: Mapping[str, str] = MappingProxyType({})


def context_headers() -> Mapping[str, str]:
    """The headers of the current span; no headers when there is no span."""
    trace = sys.modules.get(API)
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return _NOTHING
    headers: dict[str, str] = {}
    propagator().inject(headers)
    return headers


def load() -> None:
    """Import what :func:`context_headers` needs, if the application uses OpenTelemetry."""
    if API in sys.modules:
        propagator()


@cache
def propagator() -> Any:
    """OpenTelemetry's reader and writer of these headers."""
    from opentelemetry.trace.propagation import tracecontext

    return tracecontext.TraceContextTextMapPropagator()
