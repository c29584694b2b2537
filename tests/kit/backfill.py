"""What the tests of backfill runners share: a log with copies, dropped or not, and a runner."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ops.backfill import requests as requests
from ops.backfill.requests import BackfillUnit
from ops.backfill.running import BackfillWorker, Job, Workers, run_due
from ops.backfill.workers import Places, workers
from ops.seal import seal
from ops.sinks.address import open_sink
from ops.spark import local_session
from penstock import log
from penstock.archive.targets import Target
from penstock.publishing.publish import publish_batch
from penstock.records import Event, Message
from tests.kit.copies import copy_all, drop
from tests.kit.log import drain, topic
from tests.kit.stream import STREAM

#: Log epochs of each partition, and the events of each.
EPOCHS, EVENTS = 10, 7
#: At which place of a range a hook is called.
BEFORE, WITHIN, AFTER = PLACES = ("before", "within", "after")
#: And, of kinds that record a range by itself, right before that.
DONE = "done"

#: Called with the place, and how many ranges were begun.
Hook = Callable[[str, int], None]


def target(folder: Path) -> Target:
    """Where the copies are."""
    return Target("one", str(folder / "one"))


def filled(
    connection: Any,
    folder: Path,
    *,
    partitions: int = 1,
    epochs: int = EPOCHS,
    dropped: bool,
    copy: Callable[[Any, str, Target], object] = copy_all,
) -> list[Event]:
    """A log of sealed and copied log epochs, which the database has dropped or not."""
    topic(connection, partitions, STREAM)
    for part in range(partitions):
        rows = range(epochs * EVENTS)
        publish_batch(
            connection, [Message(STREAM, f"{part}.{n}".encode(), partition=part) for n in rows]
        )
    drain(connection)
    seal(connection, STREAM, max_events=EVENTS)
    events = [
        each
        for part in range(partitions)
        for each in log.fetch(connection, STREAM, part, 1, epochs * EVENTS)
    ]
    copy(connection, STREAM, target(folder))
    if dropped:
        drop(connection, STREAM, [target(folder)])
    return events


def places(folder: Path) -> Places:
    """The target of `filled`, and sinks by their addresses."""

    return Places(
        spark=lambda: local_session("backfill"),
        target=lambda name: Target(name, str(folder / name)),
        targets=lambda: [target(folder)],
        sink=lambda address, beside: open_sink(address, beside=beside),
    )


class Watched:
    """A worker that calls a hook before, within and after each range."""

    def __init__(self, inner: BackfillWorker, job: Job, hook: Hook) -> None:
        self._inner = inner
        self._hook = hook
        self._begun = 0
        check = job.alive.check

        def checked() -> None:
            if self._begun:
                hook(WITHIN, self._begun)
            check()

        job.alive.check = checked  # type: ignore[method-assign]

    def bring(self, unit: BackfillUnit) -> None:
        """The range, between its hooks."""
        self._begun += 1
        self._hook(BEFORE, self._begun)
        self._inner.bring(unit)
        self._hook(AFTER, self._begun)

    def close(self) -> None:
        """The worker's own."""
        self._inner.close()


def watched(folder: Path, hook: Hook) -> Workers:
    """Workers that call a hook."""

    def watch(make: Callable[[Job], BackfillWorker]) -> Callable[[Job], BackfillWorker]:
        return lambda job: Watched(make(job), job, hook)

    made: Mapping[str, Callable[[Job], BackfillWorker]] = workers(places(folder))
    return {kind: watch(make) for kind, make in made.items()}


def main(url: str, folder: str, name: str, place: str = "", at: str = "0") -> None:
    """Work off all that is due; note each range that is begun; die at a place of a range."""
    noted = os.open(Path(folder, name), os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    counted = [0]
    record = requests.progress

    def hook(here: str, begun: int) -> None:
        counted[0] = begun
        if here == BEFORE:
            os.write(noted, b"begun\n")
        if (here, begun) == (place, int(at)):
            os.kill(os.getpid(), signal.SIGKILL)

    def recorded(*given: Any) -> int:
        hook(DONE, counted[0])
        return record(*given)

    requests.progress = recorded  # type: ignore[assignment]
    run_due(url, watched(Path(folder), hook), run=name)


def state_of(connection: Any, request: int) -> tuple[str, int, int]:
    """The state of a request, and how much of it is done."""
    (found,) = requests.list_backfills(connection, request=request)
    return found.state, found.done_units, found.done_events


if __name__ == "__main__":
    main(*sys.argv[1:])
