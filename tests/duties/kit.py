"""Work for each duty, and what has to hold when it is done, wherever it was done."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ops.archive.archiving import archive_epochs
from ops.archive.read_back import plain_reader
from ops.backfill.requests import REHYDRATE, RELAY, request_backfill
from ops.backfill.workers import Places
from ops.duties import verbs
from ops.duties.audit import audit
from ops.duties.code import ship
from ops.duties.setup import Setup
from ops.duties.units import DONE, MAIN, DutyOutcome, DutyUnit
from ops.duties.verbs import DutyPlace
from ops.seal import log_epochs
from ops.sinks.address import configured_sink
from penstock import database, log, subscriptions
from penstock.archive.targets import Target
from tests.archive.logs import Log, bring
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import end_lease
from tests.kit import backfill, stream as streams
from tests.kit.log import put, texts, topic
from tests.kit.stream import STREAM, SUBSCRIPTION

EVENTS = backfill.EPOCHS * backfill.EVENTS


@dataclass(frozen=True)
class Scenario:
    """Work that waits in a database, and how a test sees that it was done once."""

    setup: Setup
    check: Callable[[list[DutyOutcome]], None]


def sent(folder: Path, partition: int) -> list[int]:
    """The sequences of a partition in a sink of files, in the order in which they lie there."""
    (file,) = folder.rglob(f"*.{partition}.jsonl")
    return [int(json.loads(line)["sequence"]) for line in file.read_text("utf-8").splitlines()]


def _copy(db: ContractDatabase) -> Callable[[Any, str, Target], object]:
    """Makes copies with the code of the archive's tasks."""

    def make(own: Any, name: str, place: Target) -> None:
        bring(Log(own, db.url, name), place, log_epochs(own, name))

    return make


def _setup(db: ContractDatabase, *targets: Any) -> Setup:
    return Setup.of_url(db.url, *targets)


def to_sequence(db: ContractDatabase, folder: Path) -> Scenario:
    """Committed events without sequences."""
    with closing(db.connect()) as own:
        topic(own)
        for number in range(50):
            put(own, str(number))

    def check(outcomes: list[DutyOutcome]) -> None:
        assert [each.state for each in outcomes] == [DONE]
        with closing(db.connect()) as own:
            assert texts(own) == [str(number) for number in range(50)]

    return Scenario(_setup(db), check)


def to_sweep(db: ContractDatabase, folder: Path) -> Scenario:
    """A consumer that died, and another one that waits for its lease."""
    with closing(db.connect()) as own:
        streams.filled(own)
        streams.member_with_lease(own, "dead")
        end_lease(db, "dead")

    def check(outcomes: list[DutyOutcome]) -> None:
        assert [each.state for each in outcomes] == [DONE]
        with closing(db.connect()) as own:
            assert all(each.holder is None for each in subscriptions.lag(own, SUBSCRIPTION))

    return Scenario(_setup(db), check)


def to_clean(db: ContractDatabase, folder: Path) -> Scenario:
    """Log epochs with whole copies, which retention lets go."""
    place = backfill.target(folder)
    with closing(db.connect()) as own:
        backfill.filled(own, folder, partitions=2, dropped=False, copy=_copy(db))
        database.call(
            own, "set_retention", topic=STREAM, minimum_age_seconds=0, copies=1, origin="hand",
            max_bytes=None, targets=[place.name],
        )  # fmt: skip

    def check(outcomes: list[DutyOutcome]) -> None:
        read = [each for each in outcomes if each.unit.duty == "read back"]
        assert sum(each.events for each in read) == 2 * EVENTS, outcomes
        assert {each.state for each in read} == {DONE}
        with closing(db.connect()) as own:
            lows = database.call(own, "low_sequences", topic=STREAM)
        assert [low for _, low in lows] == [EVENTS + 1] * 2

    return Scenario(_setup(db, place), check)


def to_relay(db: ContractDatabase, folder: Path) -> Scenario:
    """A subscription that has sent nothing yet to a sink of files."""
    with closing(db.connect()) as own:
        streams.filled(own, partitions=4, events=300)
        streams.short_leases(own, 2)
    setup = replace(_setup(db), sinks={(MAIN, SUBSCRIPTION): f"jsonl:{folder / 'sink'}"})

    def check(outcomes: list[DutyOutcome]) -> None:
        assert {each.state for each in outcomes} == {DONE}, outcomes
        for partition in range(4):
            assert sent(folder / "sink", partition) == list(range(1, 301)), partition
        with closing(db.connect()) as own:
            assert not any(each.lag_events for each in subscriptions.lag(own, SUBSCRIPTION))

    return Scenario(setup, check)


def to_backfill(db: ContractDatabase, folder: Path) -> Scenario:
    """A request to bring dropped log epochs back, and one to relay them again."""
    place = backfill.target(folder)
    with closing(db.connect()) as own:
        backfill.filled(own, folder, dropped=True)
        request_backfill(own, STREAM, REHYDRATE)
        request_backfill(own, STREAM, RELAY, f"jsonl:{folder / 'again'}")

    def check(outcomes: list[DutyOutcome]) -> None:
        assert [(each.state, each.events) for each in outcomes] == [(DONE, EVENTS)] * 2
        with closing(db.connect()) as own:
            assert [each.sequence for each in log.fetch(own, STREAM, 0, 1, 1_000)] == list(
                range(1, EVENTS + 1)
            )
        assert sent(folder / "again", 0) == list(range(1, EVENTS + 1))

    setup = replace(_setup(db, place), lease_seconds=3.0)
    return Scenario(setup, check)


def to_archive(db: ContractDatabase, folder: Path) -> Scenario:
    """Sealed log epochs without a copy."""
    place = backfill.target(folder)
    with closing(db.connect()) as own:
        backfill.filled(own, folder, dropped=False, copy=lambda *_: None)

    def check(outcomes: list[DutyOutcome]) -> None:
        assert [each.state for each in outcomes] == [DONE] * backfill.EPOCHS, outcomes
        with closing(db.connect()) as own:
            due = log_epochs(own, STREAM)
        assert [each.targets for each in due] == [(place.name,)] * backfill.EPOCHS
        readings = plain_reader(db.url)(place, due)
        assert [each.damage for each in readings] == [""] * backfill.EPOCHS

    return Scenario(_setup(db, place), check)


def to_audit(db: ContractDatabase, folder: Path, hot: int = 30) -> Scenario:
    """Two partitions, of which the larger part is only in the archive."""
    with closing(db.connect()) as own:
        backfill.filled(own, folder, partitions=2, dropped=True)
        streams.more(own, 2, hot)

    def check(outcomes: list[DutyOutcome]) -> None:
        assert [(each.state, each.events) for each in outcomes] == [(DONE, EVENTS + hot)] * 2

    return Scenario(_setup(db, backfill.target(folder)), check)


#: Those that are jobs of Spark by themselves, or may be.
JOBS = {"archive": to_archive, "audit": to_audit}

SCENARIOS = {
    "sequence": to_sequence,
    "sweep": to_sweep,
    "clean": to_clean,
    "relay": to_relay,
    "backfill": to_backfill,
}


def do(name: str, setup: Setup, *, engine: str, spark: Callable[[], Any]) -> list[DutyOutcome]:
    """Do the work of a scenario."""
    given: dict[str, Any] = {"engine": engine, "spark": spark}
    if name == "clean":
        return verbs.clean(setup, [DutyPlace(STREAM)], **given)
    if name == "relay":
        return verbs.relay(setup, [(MAIN, SUBSCRIPTION)], **given)
    if name == "backfill":
        return verbs.backfill_all(setup, _places(setup, spark), engine=engine)
    if name == "audit":
        return audit(setup, STREAM, **given)
    if name == "archive":
        return _archive(setup, spark())
    verb = {"sequence": verbs.sequence, "sweep": verbs.sweep}[name]
    return verb(setup, **given)


def _places(setup: Setup, spark: Callable[[], Any]) -> Places:
    """Where requests read and write: what `penstock backfill run` gives."""
    return Places(
        spark=spark,
        target=setup.target,
        targets=lambda: list(setup.targets),
        sink=lambda address, beside: configured_sink(address, beside=beside),
    )


def _archive(setup: Setup, session: Any) -> list[DutyOutcome]:
    """No duty: `penstock archive`.  An outcome for each copy, by which a test sees who made it."""
    ship(session)
    unit = DutyUnit("archive", topic=STREAM, subject="one")
    made = archive_epochs(session, setup.url(unit), STREAM, setup.target("one"))
    return [DutyOutcome(unit, DONE, each.epoch.event_count, 0.0) for each in made]
