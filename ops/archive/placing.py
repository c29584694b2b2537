"""Placing: bring log epochs to as many targets as their policy says, whichever targets are up.

The fastest homes of a log epoch come first, until ``ack_quorum`` copies are verified; then the rest
of its ``copies``.  A target that fails is replaced by the next one in the log epoch's own order.
What is still lacking then is looked for again by every later run, from the database alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ops.archive.archiving import require_archived, still_whole
from ops.archive.copying import EPOCHS_PER_JOB, CopiesFailed, CopyJob, EpochCopy, bring_copies
from ops.archive.limits import within
from ops.seal import choose_epochs, lacking
from penstock.archive.copies import EpochKey, key_of
from penstock.archive.markers import require_target
from penstock.database import call, connect, is_unavailable
from penstock.errors import DatabaseUnavailable, EpochError, LogBehind, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ops.archive.placement import Placement
    from penstock.archive.targets import Target
    from penstock.records import LogEpoch

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PlacedEpoch:
    """A log epoch, the targets of its policy that hold a verified copy, and what has failed."""

    epoch: LogEpoch
    held: tuple[str, ...]
    failed: dict[str, str]
    is_acknowledged: bool
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """What a run has brought: ``made`` are the copies that it has recorded."""

    epochs: tuple[PlacedEpoch, ...]
    made: tuple[EpochCopy, ...]
    #: The targets that could not be used at all, and why.
    away: dict[str, str]

    @property
    def behind(self) -> list[PlacedEpoch]:
        """What a later run has to go on with."""
        return [each for each in self.epochs if not each.is_complete]


class QuorumMissed(EpochError):
    """Log epochs that have fewer than ``ack_quorum`` verified copies; ``placed`` is the rest."""

    def __init__(self, topic: str, quorum: int, placed: Placed) -> None:
        """Name the first log epoch, and what failed first."""
        missed = [each for each in placed.epochs if not each.is_acknowledged]
        first = missed[0]
        why = next(iter(first.failed.items()), None) or next(iter(placed.away.items()), None)
        said = f": {why[0]}: {why[1]}" if why else ""
        super().__init__(
            f"{len(missed)} of {len(placed.epochs)} log epochs of {topic} have fewer than {quorum} "
            f"verified copies; log epoch {first.epoch.log_epoch} of partition "
            f"{first.epoch.partition} has {len(first.held)}{said}",
            hint="mend the target; penstock backfill and Dagster's sensor make what is missing",
        )
        self.placed = placed


def place_copies(
    spark: Callable[[], SparkSession],
    url: str,
    topic: str,
    placement: Placement,
    find: Callable[[str], Target],
    *,
    epochs: Collection[EpochKey] | None = None,
    repair: bool = False,
) -> Placed:
    """Bring the given log epochs, or all that lack a copy, to the targets of their policy.

    ``find`` looks a target up by its name.  With ``repair`` the recorded copies of the given log
    epochs are read back first, and whatever is damaged is made again, from other targets where the
    database has dropped it.  QuorumMissed comes at the end, when all that could be done is done; a
    target that failed beyond the quorum is no error, and is in ``behind``.
    """
    with connect(url) as connection:
        chosen = (
            lacking(connection, topic, placement)
            if epochs is None
            else choose_epochs(connection, topic, epochs)
        )
    if not chosen:
        return Placed((), (), {})
    run = _CopyRun(spark, url, topic, placement, find, repair)
    if repair and epochs is not None:
        run.forget_damaged(chosen)
        with connect(url) as connection:
            chosen = choose_epochs(connection, topic, epochs)
    states = [_State(each, placement) for each in chosen]
    for start in range(0, len(states), EPOCHS_PER_JOB):
        run.bring(states[start : start + EPOCHS_PER_JOB])
    placed = Placed(
        tuple(each.result() for each in states),
        tuple(run.made),
        {name: str(error) for name, error in run.away.items()},
    )
    if not all(each.is_acknowledged for each in placed.epochs):
        raise QuorumMissed(topic, placement.ack_quorum, placed) from run.first_error
    return placed


@dataclass(slots=True)
class _State:
    """A log epoch on its way: who holds it, and where it has failed in this run."""

    epoch: LogEpoch
    placement: Placement
    order: tuple[str, ...] = ()
    held: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.order = self.placement.order(
            self.epoch.known_as, self.epoch.partition, self.epoch.log_epoch
        )
        self.held = list(self.placement.held(self.epoch))

    def wanted(self, need: int, away: Collection[str], speed: Callable[[str], float]) -> list[str]:
        """The targets to write to now: of those that may have it, the fastest that are needed."""
        free = [each for each in self.order if each not in {*self.held, *self.failed, *away}]
        homes = free[: max(0, self.placement.copies - len(self.held))]
        return sorted(homes, key=speed)[: max(0, need - len(self.held))]

    def result(self) -> PlacedEpoch:
        """What became of it."""
        return PlacedEpoch(
            self.epoch,
            tuple(each for each in self.order if each in self.held),
            self.failed,
            len(self.held) >= self.placement.ack_quorum,
            len(self.held) >= self.placement.copies,
        )


@dataclass(slots=True)
class _CopyRun:
    #: Called when there is something to copy: an hour that is whole starts no JVM.
    spark: Callable[[], SparkSession]
    url: str
    topic: str
    placement: Placement
    find: Callable[[str], Target]
    repair: bool
    away: dict[str, Exception] = field(default_factory=dict)
    made: list[EpochCopy] = field(default_factory=list)
    first_error: Exception | None = None
    clock: Callable[[], float] = time.monotonic

    def bring(self, lot: Sequence[_State]) -> None:
        """First the quorum of every log epoch, then the rest; each failure brings the next in."""
        for need in (self.placement.ack_quorum, self.placement.copies):
            while chosen := self._choose(lot, need):
                for name, states in chosen.items():
                    self._copy(name, states)

    def _choose(self, lot: Iterable[_State], need: int) -> dict[str, list[_State]]:
        """What to write to which target, the fastest target first."""
        with connect(self.url) as connection:
            speeds = {row[0]: float(row[1]) for row in call(connection, "target_speeds")}

        def speed(name: str) -> float:
            return speeds.get(name, 0.0)  # a new one is tried first

        chosen: dict[str, list[_State]] = {}
        for each in lot:
            for name in each.wanted(need, self.away, speed):
                chosen.setdefault(name, []).append(each)
        return {name: chosen[name] for name in sorted(chosen, key=speed)}

    def _copy(self, name: str, states: Sequence[_State]) -> None:
        if name in self.away:
            return
        begun = self.clock()
        made: Sequence[EpochCopy] = ()
        reasons: dict[EpochKey, str] = {}
        try:
            made = self._on(name, "a copy on", partial(self._bring, [s.epoch for s in states]))
        except CopiesFailed as error:
            made = error.made
            reasons = {key_of(each.epoch): each.reason for each in error.failed}
            self.first_error = self.first_error or error
        except Exception as error:
            self._gave_up(name, error)
            reasons = {key_of(each.epoch): str(error) for each in states}
        self._note(name, (self.clock() - begun) / len(made) if made else None)
        self.made += made
        held = {key_of(copy.epoch) for copy in made}
        for each in states:
            if key_of(each.epoch) in held:
                each.held.append(name)
            else:
                each.failed[name] = reasons.get(key_of(each.epoch), "it was not made")

    def _bring(
        self, epochs: Sequence[LogEpoch], target: Target, given_up: threading.Event
    ) -> list[EpochCopy]:
        installation = require_target(self.url, target, write=True)
        require_archived(self.url, self.topic, target)
        job = CopyJob(
            self.spark(),
            self.url,
            target,
            installation,
            self.repair,
            self._sources(target),
            given_up,
        )
        return bring_copies(job, epochs)

    def forget_damaged(self, epochs: Sequence[LogEpoch]) -> None:
        """Read the recorded copies back, and forget those that are not what was sealed."""
        for name in self.placement.targets:
            recorded = [each for each in epochs if name in each.targets]
            if not recorded:
                continue
            try:
                self._on(name, "reading back", partial(self._forget_damaged, recorded))
            except Exception as error:
                self._gave_up(name, error)

    def _forget_damaged(
        self, epochs: Sequence[LogEpoch], target: Target, _: threading.Event
    ) -> None:
        still_whole(self.spark(), self.url, target, epochs)

    def _on(
        self, name: str, what: str, work: Callable[[Target, threading.Event], Result]
    ) -> Result:
        """Work on a target, within the time limit of a copy."""
        target = self.find(name)
        return within(
            self.placement.copy_seconds,
            f"{what} the archive target {name}",
            partial(work, target),
            self.spark(),
        )

    def _sources(self, target: Target) -> tuple[Target, ...]:
        """The other targets that can be read."""
        found = []
        for name in self.placement.targets:
            if name != target.name and name not in self.away:
                try:
                    found.append(self.find(name))
                except Exception as error:
                    self.away[name] = error
        return tuple(found)

    def _gave_up(self, name: str, error: Exception) -> None:
        """This run asks the target no more; what is at fault for all targets ends it."""
        if isinstance(error, (LogBehind, DatabaseUnavailable)) or is_unavailable(error):
            raise error
        log.warning(
            "the archive target %s is left out: %s",
            name,
            error,
            exc_info=None if isinstance(error, PenstockError) else error,
        )
        self.away[name] = error
        self.first_error = self.first_error or error

    def _note(self, name: str, seconds: float | None) -> None:
        with connect(self.url) as connection:
            call(connection, "note_target_speed", target=name, seconds=seconds)
