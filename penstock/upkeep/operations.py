"""How long the calls of this process took: publish, publish_batch, poll and commit.

An application that publishes shows them beside its own metrics::

    from penstock.upkeep import operations

    operations.record()      # once, at the start
    operations.page()        # the text for its /metrics, as bytes

Daemons, workers and ``penstock upkeep`` do so by themselves.
"""

from __future__ import annotations

from penstock.database import timings
from penstock.upkeep.metrics import Figures, Histogram, exposition

_histograms = {name: Histogram() for name in sorted(set(timings.OPERATIONS.values()))}


def record() -> None:
    """Measure from now on.  A second call changes nothing."""
    timings.observer = _observe


def figures() -> Figures:
    """A histogram for each kind of call; empty before :func:`record`."""
    if timings.observer is None:
        return {}
    return {("operation_seconds", name): each.figure() for name, each in _histograms.items()}


def page() -> bytes:
    """The same in Prometheus's text format."""
    return exposition(figures())


def _observe(name: str, seconds: float) -> None:
    _histograms[name].observe(seconds)
