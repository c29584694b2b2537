"""Where the time from COMMIT to handler goes: the calls of a process, timed from within.

python -m benchmarks.latency_steps FILE MODULE [ARGUMENT ...]

runs a module as ``python -m`` would.  FILE gets, at its end, a line for each call that an event
has to wait for: its name, begin and end in nanoseconds of the machine's monotonic clock, and how
many events it brought.
"""

from __future__ import annotations

import runpy
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from penstock import log
from penstock.subscriptions import queue, stream


@dataclass(frozen=True, slots=True)
class Call:
    """One call; times in nanoseconds."""

    name: str
    begin: int
    end: int
    events: int


def _nothing(answer: Any) -> int:
    return 0


#: The calls that are timed, and how many events a result stands for.
_TIMED: list[tuple[Any, str, Callable[[Any], int]]] = [
    (log, "sequence", lambda answer: int(answer.sequenced)),
    (stream, "check_in", _nothing),
    (stream, "poll", lambda answer: sum(len(events) for _, events in answer)),
    (stream, "commit", _nothing),
    (queue, "receive", len),
    (queue, "acknowledge", _nothing),
]
#: The calls that bring events: of a stream, and of a queue.
_READS = ("poll", "receive")


def main() -> None:
    """Run the module with its calls timed."""
    file, module, *arguments = sys.argv[1:]
    calls: list[str] = []
    for owner, name, count in _TIMED:
        setattr(owner, name, _timed(getattr(owner, name), name, count, calls))
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        Path(file).write_text("".join(calls))


def _timed(
    call: Callable[..., Any], name: str, count: Callable[[Any], int], calls: list[str]
) -> Callable[..., Any]:
    def timed(*given: Any, **named: Any) -> Any:
        begin = time.monotonic_ns()
        answer = call(*given, **named)
        calls.append(f"{name} {begin} {time.monotonic_ns()} {count(answer)}\n")
        return answer

    return timed


def read(file: Path) -> list[Call]:
    """The calls that a process has written."""
    found = [line.split() for line in file.read_text().splitlines()]
    return [Call(name, int(begin), int(end), int(events)) for name, begin, end, events in found]


def lines(
    committed: Sequence[int],
    handled: Sequence[int],
    sequencer: Sequence[Call],
    consumer: Sequence[Call],
    first: int,
) -> Iterator[str]:
    """Median, 99th percentile and share in the tail of each step, from the first event that counts.

    Events are sequenced and read in the order in which they were committed.
    """  # fmt: skip
    passes, polls = _bringing(sequencer, "sequence"), _bringing(consumer, *_READS)
    steps: dict[str, list[float]] = {
        "commit answered - pass begins": [],
        "pass": [],
        "pass answered - read begins": [],
        "read": [],
        "read answered - handler": [],
    }
    for number in range(first, len(committed)):
        at = [committed[number], *_around(passes, number), *_around(polls, number), handled[number]]
        for spent, (begin, end) in zip(steps.values(), pairwise(at), strict=True):
            spent.append((end - begin) / 1e6)
    slowest = _slowest([sum(each) for each in zip(*steps.values(), strict=True)])
    for name, spent in steps.items():
        tail = mean(spent[place] for place in slowest)
        yield f"{_line(name, spent)}, the slowest 1 % {tail:8.2f} ms"
    since = committed[first]
    seconds = (max(committed) - since) / 1e9
    for _, name, _ in _TIMED:
        of_name = [each for each in (*sequencer, *consumer) if each.name == name]
        spent = [(each.end - each.begin) / 1e6 for each in of_name if each.begin >= since]
        if len(spent) > 1 and seconds > 0:
            yield f"{_line(f'  each {name}', spent)}, {len(spent) / seconds:,.0f}/s"


def _slowest(totals: Sequence[float]) -> list[int]:
    """The places of the slowest event in a hundred, and at least of one."""
    count = max(1, len(totals) // 100)
    return sorted(range(len(totals)), key=totals.__getitem__)[-count:]


def _line(name: str, spent: Sequence[float]) -> str:
    far = quantiles(spent, n=100, method="inclusive")[98]
    return f"  {name:32} p50 {median(spent):8.2f}  p99 {far:8.2f} ms"


def _bringing(calls: Sequence[Call], *names: str) -> tuple[list[Call], list[int]]:
    """The calls that brought events, and how many had come by the end of each."""
    chosen = [each for each in calls if each.name in names and each.events]
    return chosen, list(accumulate(each.events for each in chosen))


def _around(calls: tuple[list[Call], list[int]], number: int) -> tuple[int, int]:
    """Begin and end of the call that brought an event."""
    chosen, until = calls
    call = chosen[bisect_left(until, number + 1)]
    return call.begin, call.end


if __name__ == "__main__":
    main()
