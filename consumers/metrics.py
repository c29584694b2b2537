"""Every metric of the daemon, and the figures of its processes put together."""

from __future__ import annotations

import bisect
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

PREFIX = "penstock_"
#: Upper bounds in seconds of the buckets of a handler's time.
BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class About:
    """What a metric is: its type, its one label, and how figures of several processes add up."""

    kind: str
    label: str
    help: str
    together: Callable[[Iterable[float]], float] = sum


#: By name, without the prefix and, of counters, without _total.  docs/metrics.md has the same.
METRICS: dict[str, About] = {
    "sequenced_events": About("counter", "worker", "Events that got their sequence"),
    "sequencer_passes": About("counter", "worker", "Passes of the sequencer"),
    "swept_consumers": About("counter", "worker", "Dead consumers that were collected"),
    "consumed_events": About("counter", "worker", "Events that handlers have done"),
    "consumed_batches": About("counter", "worker", "Batches that handlers have done"),
    "consumed_failures": About("counter", "worker", "Handlers that failed, and refused commits"),
    "stale_commits": About("counter", "worker", "Commits of this daemon that the fence refused"),
    "relayed_events": About("counter", "worker", "Events that a sink has taken"),
    "relayed_batches": About("counter", "worker", "Blocks that a sink has taken"),
    "relayed_failures": About("counter", "worker", "Attempts that a sink refused, or lost"),
    "handler_seconds": About("histogram", "worker", "How long a handler took for a call"),
    "held_leases": About("gauge", "worker", "Partitions that the worker holds"),
    "heartbeat_age_seconds": About(
        "gauge", "worker", "Since the last heartbeat that reached the database", max
    ),
    "worker_restarts": About("counter", "worker", "Restarts after a failure"),
    "worker_up": About("gauge", "worker", "1 while the worker has no unanswered failure", min),
    "database_reconnects": About("counter", "", "Connections that were opened after the start"),
    "database_connect_failures": About("counter", "", "Attempts to connect that failed"),
    "database_up": About("gauge", "", "1 while the database answers the daemon", min),
    "lag_events": About("gauge", "subscription", "Events that wait for the subscription"),
    "lag_seconds": About("gauge", "subscription", "For how long the first of them has waited"),
    "leased_partitions": About("gauge", "subscription", "Partitions that some consumer holds"),
    "take_overs": About("counter", "subscription", "Leases taken over from dead consumers"),
    "rejected_commits": About(
        "counter",
        "",
        "Commits that the fence refused, of anybody; absent behind walls",
    ),
    "sequencer_lag_events": About("gauge", "", "Committed events that wait for their sequence"),
    "sequencer_lag_seconds": About("gauge", "", "For how long the first of them has waited"),
    "sequencer_last_pass_seconds": About(
        "gauge", "", "Since the sequencer last found work; absent behind walls"
    ),
    "dead_letters": About(
        "gauge", "subscription", "Events that were given up and wait for somebody, up to 10,000"
    ),
}

#: (name, value of the label) -> figure; of a histogram, its counts and at the end its sum.
Figures = dict[tuple[str, str], float | list[float]]


@dataclass(slots=True)
class Histogram:
    """Counts of times, by bucket; the last count is of what is longer than all bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def observe(self, seconds: float) -> None:
        """Count one time."""
        with self._lock:
            self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
            self.total += seconds

    def figure(self) -> list[float]:
        """The counts and the sum."""
        with self._lock:
            return [*self.counts, self.total]

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function with its calls measured, also of those that fail.

        What is no handler stays as it is, for the consumer to refuse.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return function
        if inspect.iscoroutinefunction(function):

            async def call_async(*arguments: Any) -> Any:
                begun = time.perf_counter()
                try:
                    return await function(*arguments)
                finally:
                    self.observe(time.perf_counter() - begun)

            return call_async

        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.observe(time.perf_counter() - begun)

        return call


def add_up(of_processes: Sequence[Figures]) -> Figures:
    """One figure for each name and label; counters of processes that are gone count on."""
    found: dict[tuple[str, str], list[float | list[float]]] = {}
    for figures in of_processes:
        for key, value in figures.items():
            found.setdefault(key, []).append(value)
    return {key: _together(METRICS[key[0]], values) for key, values in found.items()}


def only_counters(figures: Figures) -> Figures:
    """What is kept of a process that is gone."""
    return {key: value for key, value in figures.items() if METRICS[key[0]].kind != "gauge"}


def _together(about: About, values: list[Any]) -> float | list[float]:
    if about.kind == "histogram":
        return [sum(column) for column in zip(*values, strict=True)]
    return about.together(values)


def exposition(figures: Figures) -> bytes:
    """The figures as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(_Figures(figures))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        for name, about in METRICS.items():
            samples = {
                label: value for (each, label), value in self._figures.items() if each == name
            }
            if samples:
                yield _family(name, about, samples)


def _family(name: str, about: About, samples: dict[str, Any]) -> Metric:
    labels = [about.label] if about.label else []
    kinds: dict[str, Any] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    family: Metric = kinds[about.kind](f"{PREFIX}{name}", about.help, labels=labels)
    for label, value in sorted(samples.items()):
        given = [label] if labels else []
        if about.kind == "histogram":
            family.add_metric(given, _buckets(value), sum_value=value[-1])  # type: ignore[attr-defined]
        else:
            family.add_metric(given, value)  # type: ignore[attr-defined]
    return family


def _buckets(figure: list[float]) -> list[tuple[str, float]]:
    """Each bucket counts what the ones below it count too."""
    bounds = [*(str(each) for each in BUCKETS), "+Inf"]
    so_far = 0.0
    found = []
    for bound, count in zip(bounds, figure[:-1], strict=True):
        so_far += count
        found.append((bound, so_far))
    return found
