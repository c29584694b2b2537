"""Every metric of a long-running program, and adding up the figures of several processes."""

from __future__ import annotations

import bisect
import inspect
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Prometheus's text format.  It is rendered here, so that the wheel needs no library for it.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "penstock_"
#: Upper bounds of the buckets for times, in seconds.  The limits of the alerts are among them.
BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 2.5, 10.0, 60.0, 300.0)


@dataclass(frozen=True, slots=True)
class About:
    """What a metric is: its type, its one label, and how figures of several processes add up."""

    kind: str
    label: str
    help: str
    together: Callable[[Iterable[float]], float] = sum


#: By name, without the prefix and, of counters, without _total: docs/reference/metrics.md, too.
METRICS: dict[str, About] = {
    "sequenced_events": About("counter", "worker", "Events that got their sequence"),
    "sequencer_passes": About("counter", "worker", "Passes of the sequencer"),
    "sequencer_wakes": About("counter", "worker", "Rests that a publisher has ended early"),
    "swept_consumers": About("counter", "worker", "Dead consumers that were collected"),
    "consumed_events": About("counter", "worker", "Events that handlers have done"),
    "consumed_batches": About("counter", "worker", "Batches that handlers have done"),
    "consumed_failures": About("counter", "worker", "Handlers that failed, and refused commits"),
    "stale_commits": About("counter", "worker", "Commits of this program that the fence refused"),
    "queue_hand_outs": About("counter", "worker", "Events that a queue has handed to the worker"),
    "queue_expirations": About(
        "counter", "worker", "Of these, events whose hand-outs before had ended unfinished"
    ),
    "queue_in_hand": About("gauge", "worker", "Events of a queue that the worker has"),
    "relayed_events": About("counter", "worker", "Events that a sink has taken"),
    "relayed_batches": About("counter", "worker", "Blocks that a sink has taken"),
    "relayed_failures": About("counter", "worker", "Attempts that a sink refused, or lost"),
    "relayed_dead_letters": About("counter", "worker", "Events that a relay has given up"),
    "relayed_left_out": About("counter", "worker", "Events that the rules of a relay left out"),
    "relay_in_hand": About("gauge", "worker", "Events of a queue that its relay has"),
    "relay_breaker_open": About(
        "gauge", "worker", "1 while a relay leaves its sink alone after failures; else 0", max
    ),
    "relay_calls_left_behind": About(
        "gauge", "worker", "Calls of a sink that did not end when they were told to"
    ),
    "handler_seconds": About(
        "histogram", "worker", "How long a handler took for a call, or a sink for a block"
    ),
    "operation_seconds": About(
        "histogram", "operation", "How long the database took for a call of this program"
    ),
    "held_leases": About("gauge", "worker", "Partitions that the worker holds"),
    "heartbeat_age_seconds": About(
        "gauge", "worker", "Since the last heartbeat that reached the database", max
    ),
    "gateway_requests": About("counter", "worker", "Requests that the gateway has answered"),
    "gateway_refused": About("counter", "worker", "Of these, with a code of 400 to 499"),
    "gateway_failed": About("counter", "worker", "Of these, with a code of 500 or above"),
    "gateway_published_events": About(
        "counter", "worker", "Single publishes that the gateway has committed"
    ),
    "gateway_published_batches": About("counter", "worker", "Transactions that it needed for them"),
    "gateway_present": About("gauge", "worker", "Requests that are being answered"),
    "gateway_polls": About("gauge", "worker", "Of these, long polls that wait"),
    "gateway_listeners": About("gauge", "worker", "Of these, listeners of subscriptions"),
    "worker_restarts": About("counter", "worker", "Restarts after a failure"),
    "worker_up": About(
        "gauge", "worker", "0 after a failure, until the worker runs again; else 1", min
    ),
    "database_reconnects": About("counter", "", "Connections that were opened after the start"),
    "database_connect_failures": About("counter", "", "Attempts to connect that failed"),
    "database_up": About("gauge", "", "1 while this program can use the database", min),
    "lag_events": About("gauge", "subscription", "Events that wait for the subscription"),
    "lag_seconds": About("gauge", "subscription", "For how long the first of them has waited"),
    "sink_lag_events": About(
        "gauge", "subscription", "Events that wait for one sink of a relay with several"
    ),
    "sink_lag_seconds": About("gauge", "subscription", "For how long the first of them has waited"),
    "leased_partitions": About("gauge", "subscription", "Partitions that some consumer holds"),
    "take_overs": About("counter", "subscription", "Leases taken over from dead consumers"),
    "rejected_commits": About(
        "counter",
        "",
        "Commits that the fence refused, of all programs; only for logins that see all topics",
    ),
    "sequencer_lag_events": About("gauge", "", "Committed events that wait for their sequence"),
    "sequencer_lag_seconds": About("gauge", "", "For how long the first of them has waited"),
    "sequencer_last_pass_seconds": About(
        "gauge", "", "Since the sequencer last found work; only for logins that see all topics"
    ),
    "horizon_age_seconds": About(
        "gauge",
        "",
        "For how long the oldest open transaction, or a slot, has kept old rows",
        max,
    ),
    "storage_days": About(
        "gauge",
        "",
        "For how many days storage is ready at the highest rate; +Inf before there is one",
    ),
    "queue_ready": About("gauge", "subscription", "Events of a queue that can be handed out"),
    "queue_in_flight": About("gauge", "subscription", "Events of a queue that workers have"),
    "queue_delayed": About("gauge", "subscription", "Events of a queue that wait for a retry"),
    "queue_oldest_seconds": About(
        "gauge", "subscription", "For how long the oldest event of a queue has been unfinished"
    ),
    "dead_letters": About(
        "gauge", "subscription", "Events that were given up and wait for somebody, up to 10,000"
    ),
    "dead_letters_not_forwarded": About(
        "gauge",
        "subscription",
        "Of these, what the topic that the subscription names did not take",
    ),
}

#: More subscriptions than this share one figure, under this name.
MOST_SUBSCRIPTIONS = 1_000
THE_OTHERS = "(others)"

#: (name, value of the label) -> figure.  For a histogram: its counts, and its sum at the end.
Figures = dict[tuple[str, str], float | list[float]]


@dataclass(slots=True)
class Histogram:
    """Counts of times, by bucket.  The last count is of times longer than all bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0
    #: What the calls are measured with.
    clock: Callable[[], float] = time.perf_counter
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
        """The same function with its calls measured, also those that fail.

        An object that is not a handler is returned unchanged, and the consumer refuses it.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            return function
        if inspect.iscoroutinefunction(function):

            async def call_async(*arguments: Any) -> Any:
                begun = self.clock()
                try:
                    return await function(*arguments)
                finally:
                    self.observe(self.clock() - begun)

            return call_async

        def call(*arguments: Any) -> Any:
            begun = self.clock()
            try:
                return function(*arguments)
            finally:
                self.observe(self.clock() - begun)

        return call


def labels_of(subscriptions: Iterable[str]) -> dict[str, str]:
    """The label of each subscription.  All beyond the first ``MOST_SUBSCRIPTIONS`` share one."""
    return {
        name: name if number < MOST_SUBSCRIPTIONS else THE_OTHERS
        for number, name in enumerate(dict.fromkeys(subscriptions))
    }


def add_up(of_processes: Sequence[Figures]) -> Figures:
    """One figure for each name and label.  Counters of ended processes still count."""
    found: dict[tuple[str, str], list[float | list[float]]] = {}
    for figures in of_processes:
        for key, value in figures.items():
            found.setdefault(key, []).append(value)
    return {key: _together(METRICS[key[0]], values) for key, values in found.items()}


def only_counters(figures: Figures) -> Figures:
    """The figures that are kept of a process that has ended."""
    return {key: value for key, value in figures.items() if METRICS[key[0]].kind != "gauge"}


def _together(about: About, values: list[Any]) -> float | list[float]:
    if about.kind == "histogram":
        return [sum(column) for column in zip(*values, strict=True)]
    return about.together(values)


def exposition(figures: Figures) -> bytes:
    """The figures in Prometheus's text format."""
    lines: list[str] = []
    for name, about in METRICS.items():
        samples = {label: value for (each, label), value in figures.items() if each == name}
        if samples:
            lines += _family(name, about, samples)
    return "".join(f"{line}\n" for line in lines).encode()


def _family(name: str, about: About, samples: dict[str, Any]) -> Iterator[str]:
    full = f"{PREFIX}{name}{'_total' if about.kind == 'counter' else ''}"
    yield f"# HELP {full} {about.help}"
    yield f"# TYPE {full} {about.kind}"
    for value_of_label, value in sorted(samples.items()):
        label = f'{about.label}="{_escaped(value_of_label)}"' if about.label else ""
        if about.kind == "histogram":
            for bound, count in _buckets(value):
                yield f'{full}_bucket{{le="{bound}",{label}}} {float(count)!r}'
            yield f"{full}_count{{{label}}} {float(sum(value[:-1]))!r}"
            yield f"{full}_sum{{{label}}} {float(value[-1])!r}"
        else:
            yield f"{full}{f'{{{label}}}' if label else ''} {_number(value)}"


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(float(value))


def _escaped(label: str) -> str:
    """The value of a label, which may be any text."""
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _buckets(figure: list[float]) -> list[tuple[str, float]]:
    """The counts as Prometheus wants them: each bucket includes the ones below it."""
    bounds = [*(str(each) for each in BUCKETS), "+Inf"]
    return list(zip(bounds, itertools.accumulate(figure[:-1]), strict=True))
