"""A reported position can stop all readers of a topic, or only the caller's subscription."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import log
from penstock.errors import LogBehind, PenstockError, SubscriptionNotFound, TopicNotFound
from penstock.log.histories import reconcile, restore_status
from penstock.log.restores import Seen, report_position, require_log
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.contract.tenants import OPEN, THEIRS, Tenants, as_login, tenants_of, three_topics
from tests.kit.log import part
from tests.kit.proof import proves

STOPS_ALL: Guard = {
    "postgres": (
        "report_positions",
        "CASE WHEN may_operate THEN 0 ELSE owner_id END",
        "0",
    ),
    "mysql": ("stop_reported", "IF(may_operate, 0, owner_id)", "0"),
}
READERS_REPORT: Guard = {
    "postgres": ("report_positions", "'operate'", "'read'"),
    "mysql": ("stop_reported", "'operate'", "'read'"),
}
UNREAD: Guard = {
    "postgres": ("report_positions", "CONTINUE WHEN NOT may_operate AND NOT given.is_read;", ""),
    "mysql": ("stop_reported", "IF may_operate OR leased > 0 THEN", "IF TRUE THEN"),
}
NOBODY_IS_STOPPED: Guard = {
    "postgres": ("require_readable", "IN (0, require_readable.subscription_id)", "= 0"),
    "mysql": ("require_readable", "IN (0, of_subscription)", "= 0"),
}


@pytest.fixture
def tenants(db: ContractDatabase) -> Iterator[Tenants]:
    """A topic of theirs, with an event and the subscription "theirs", and an open one."""
    with tenants_of(db) as found:
        three_topics(found)
        penstock.grant_namespace(found.owner, "theirs", found.somebody, "operate")
        yield found


def _with(tenants: Tenants, verb: str) -> str:
    login = tenants.tenant()
    penstock.grant_namespace(tenants.owner, "theirs", login, verb)
    return login


def _report(own: Any, partition_id: int, subscription: str | None = None) -> bool:
    """Whether it is stopped, for who says that the log had come to 99."""
    return report_position(
        own, partition_id, 99, history=1, source="a relay", subscription=subscription
    ).stopped


def _polled(own: Any, subscription: str) -> list[Any]:
    member = stream.join(own, subscription, "one")
    try:
        return stream.poll(own, member, stream.check_in(own, member))
    finally:
        stream.leave(own, member)


def test_a_reader_stops_nothing(tenants: Tenants) -> None:
    """Guard: without a subscription a report asks for operate."""
    for verb in ("read", "publish", "consume"):
        with as_login(tenants, _with(tenants, verb)) as own:
            with pytest.raises(TopicNotFound):
                _report(own, part(tenants.owner, name=THEIRS))
            with pytest.raises(TopicNotFound):
                require_log(own, {part(tenants.owner, name=THEIRS): Seen(99, 1)}, "x")
            if verb != "consume":
                with pytest.raises(SubscriptionNotFound):
                    _report(own, part(tenants.owner, name=THEIRS), "theirs")
    assert restore_status(tenants.owner) == []


@proves("S22", how="nor stop them by a report")
def test_a_consumer_stops_its_own_subscription(tenants: Tenants) -> None:
    """Guards: report_positions, require_readable; the stop lasts until it is reconciled."""
    owner, place = tenants.owner, part(tenants.owner, name=THEIRS)
    with as_login(tenants, _with(tenants, "consume")) as own:
        stream.subscribe(own, "relay", [THEIRS])
        assert _report(own, place, "relay") is True
        with pytest.raises(LogBehind, match="a relay has seen sequence 99"):
            _polled(own, "relay")
        assert log.fetch(own, THEIRS, 0, 1)
    (status,) = restore_status(owner)
    assert (status.topic, status.sequence, status.source) == (
        THEIRS,
        99,
        'a relay (stops "relay" alone)',
    )
    assert log.fetch(owner, THEIRS, 0, 1)
    assert _polled(owner, "theirs")
    assert reconcile(owner, "a test") == 2
    assert _polled(owner, "relay")


@proves("S21", how="all")
def test_who_may_operate_stops_all(tenants: Tenants) -> None:
    """Also for a subscription, which is what a relay reports for."""
    with as_login(tenants, _with(tenants, "operate")) as own:
        assert _report(own, part(own, name=THEIRS), "theirs") is True
    for call in (
        lambda: log.fetch(tenants.owner, THEIRS, 0, 1),
        lambda: _polled(tenants.owner, "theirs"),
    ):
        with pytest.raises(LogBehind):
            call()
    assert [each.source for each in restore_status(tenants.owner)] == ["a relay"]


def test_a_subscription_reports_of_what_it_reads(tenants: Tenants) -> None:
    """Guard: of another partition it learns no more than of one that is not there."""
    with as_login(tenants, tenants.tenant()) as own:
        stream.subscribe(own, "mine", [OPEN])
        with pytest.raises(TopicNotFound) as hidden:
            _report(own, part(tenants.owner, name=THEIRS), "mine")
        with pytest.raises(TopicNotFound) as missing:
            _report(own, 99 << 16, "mine")
    there, away = str(part(tenants.owner, name=THEIRS)), str(99 << 16)
    assert str(hidden.value) == str(missing.value).replace(away, there)
    assert restore_status(tenants.owner) == []


def test_where_rights_are_not_asked_for_everybody_stops_all(tenants: Tenants) -> None:
    """As everything else there."""
    with as_login(tenants, tenants.login("consumer")) as own:
        assert _report(own, part(own, name=OPEN)) is True
    with pytest.raises(LogBehind):
        log.fetch(tenants.owner, OPEN, 0, 1)


def test_a_stop_goes_with_its_subscription(tenants: Tenants) -> None:
    """Guard: unsubscribe; one that is made anew under the name has seen nothing."""
    with as_login(tenants, _with(tenants, "consume")) as own:
        for _ in range(2):
            stream.subscribe(own, "relay", [THEIRS])
            assert _polled(own, "relay")
            assert _report(own, part(own, name=THEIRS), "relay")
            stream.unsubscribe(own, "relay")
            assert restore_status(tenants.owner) == []


def _attack(own: Any, tenants: Tenants) -> set[str]:
    """What a login that may consume, and one that may read, can do to the others."""
    place = part(tenants.owner, name=THEIRS)
    found = set()
    stream.subscribe(own, "relay", [THEIRS])
    _report(own, place, "relay")
    for name, call in {
        "fetch": lambda: log.fetch(tenants.owner, THEIRS, 0, 1),
        "own": lambda: _polled(own, "relay"),
    }.items():
        try:
            call()
        except LogBehind:
            found.add(name)
    try:
        with as_login(tenants, _with(tenants, "read")) as reader:
            _report(reader, place)
        found.add("reader")
    except PenstockError:
        pass
    return found


@proves("S22", guard="each part of the wall")
@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        (None, {"own"}),
        (STOPS_ALL, {"own", "fetch"}),
        (READERS_REPORT, {"own", "fetch", "reader"}),
        (NOBODY_IS_STOPPED, set()),
        (UNREAD, {"own", "reader"}),
    ],
)
def test_without_each_guard_more_is_stopped_or_less(
    db: ContractDatabase, tenants: Tenants, guard: Guard | None, expected: set[str]
) -> None:
    """Mutants of them all, beside what is right."""
    if guard is not None:
        without(db, guard)
    with as_login(tenants, _with(tenants, "consume")) as own:
        assert _attack(own, tenants) == expected


_SEES = "WHERE NOT t.restricted AND {} OR has_right(t.namespace_id, 'any')"
TOPIC_WALL = {
    "postgres": ("restore_status", _SEES.format("(SELECT as_login())"), ""),
    "mysql": ("restore_status", _SEES.format("@penstock_acting IS NULL"), ""),
}
STOP_WALL = ("restore_status", "(o.id IS NULL OR NOT reads_hidden(o.id))", "TRUE")
POSITION_WALL = ("restore_status", "AND NOT reads_hidden(o.id)", "")


def _told(db: ContractDatabase, tenants: Tenants, verb: str = "") -> tuple[set[str], set[str]]:
    """The topics and the sources of which a reader is told after a restore."""
    owner = tenants.owner
    for topic in (OPEN, THEIRS):
        _report(owner, part(owner, name=topic))
    with as_login(tenants, _with(tenants, "consume")) as own:
        stream.subscribe(own, "alone", [OPEN, THEIRS])
        _report(own, part(owner, name=THEIRS), "alone")
    db.run(
        "INSERT INTO penstock.positions"
        " (subscription_id, partition_id, position, lease_epoch, reason)"
        " SELECT subscription_id, partition_id, 9, 1, 'commit' FROM penstock.leases"
    )
    login = tenants.login("reader")
    if verb:
        penstock.grant_namespace(owner, "theirs", login, verb)
    with as_login(tenants, login) as own:
        found = restore_status(own)
    return {each.topic for each in found}, {each.source for each in found}


def test_a_reader_is_told_what_a_restore_has_lost(db: ContractDatabase, tenants: Tenants) -> None:
    """The job health and the doctor run with that role; it sees what else it may see.

    Guards: restore_status is of the role reader; the walls around topics, around subscriptions
    that stop alone, and around positions.
    """
    topics, sources = _told(db, tenants)
    assert OPEN in topics and THEIRS not in topics
    assert {"a relay", 'subscription "open"'} <= sources
    assert not {each for each in sources if "alone" in each or "theirs" in each}


@pytest.mark.parametrize("verb", ["read", "consume"])
def test_who_may_see_a_topic_is_told_of_it(
    db: ContractDatabase, tenants: Tenants, verb: str
) -> None:
    """A subscription is seen by who may consume all that it reads."""
    topics, sources = _told(db, tenants, verb)
    if verb == "read":
        assert {OPEN, THEIRS} <= topics and "a relay" in sources
        assert not {each for each in sources if "alone" in each or "theirs" in each}
        return
    assert {OPEN, THEIRS} <= topics
    assert {'a relay (stops "alone" alone)', 'subscription "theirs"'} <= sources


@pytest.mark.parametrize(
    ("guard", "verb", "seen"),
    [
        (TOPIC_WALL, "", THEIRS),
        (dict.fromkeys(TOPIC_WALL, STOP_WALL), "read", 'a relay (stops "alone" alone)'),
        (dict.fromkeys(TOPIC_WALL, POSITION_WALL), "", 'subscription "alone"'),
    ],
)
def test_without_each_wall_a_reader_is_told_more(
    db: ContractDatabase, tenants: Tenants, guard: Guard, verb: str, seen: str
) -> None:
    """Mutants of the walls."""
    without(db, guard)
    assert seen in set.union(*_told(db, tenants, verb))
