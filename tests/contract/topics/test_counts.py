"""Counts over the log are of what the login may see: nothing tells it how much others do."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from ops.backfill.requests import request_backfill
from penstock import database, log, subscriptions
from penstock.errors import StaleLease
from penstock.subscriptions import stream
from penstock.subscriptions.relay_groups import set_relay_group
from tests import servers
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.contract.tenants import OPEN, OURS, THEIRS, Tenants, as_login
from tests.kit.proof import proves

pytestmark = pytest.mark.usefixtures("neighbours")

#: Statements of the reader, the consumer and the publisher that ask for the whole log.
EVERYTHING: dict[str, dict[str, Any]] = {
    "log_status": {},
    "unsequenced": {},
    "rejected_commits": {},
    "slices_ready": {},
    "restore_status": {},
    "list_namespaces": {},
    "list_topics": {"namespace": None, "after": "", "max_rows": None},
    "grants_of": {"namespace": None},
    "list_subscriptions": {"of_mode": "", "namespace": "", "after": "", "max_rows": None},
    "retention_of": {},
    "retention_limits": {},
    "list_holds": {"topic": None, "released": True},
    "list_bookmarks": {"topic": None},
    "list_erasures": {"topic": None},
    "lost_copies": {"max_rows": 100},
    "unsealed_logs": {},
    "list_skips": {"subscription": None},
    "list_removals": {},
    "settings_of": {},
    "subscription_lag": {"subscription": None},
    "subscription_consumers": {"subscription": None},
    "subscription_statistics": {"subscription": None},
    "dead_letter_counts": {"subscription": None},
    "unleased_cursors": {"subscription": None},
    "leased_cursors": {"subscription": None},
    "describe_topic": {"topic": OPEN},
    "list_backfills": {"topic": None, "state": None, "request": None, "max_rows": 100},
    "take_overs": {"subscription": "theirs"},
    "list_relay_groups": {},
    "relay_group_lag": {"relay": None},
}


def ours(tenants: Tenants) -> str:
    """A login of ours that may do all but operate, when their namespace is theirs."""
    us, they = (tenants.login("consumer publisher reader") for _ in range(2))
    penstock.grant_namespace(tenants.owner, "ours", us, "operate")
    penstock.grant_namespace(tenants.owner, "theirs", they, "operate")
    return us


def answers(own: Any) -> dict[str, Any]:
    """What everything that asks for the whole log answers; but for ages, which the clock moves."""

    def steady(row: tuple[Any, ...]) -> str:
        return str([each for each in row if not (isinstance(each, float) and 0 < each < 3600)])

    return {
        name: sorted(steady(row) for row in database.call(own, name, **binds))
        for name, binds in EVERYTHING.items()
    }


def they_do_all_sorts(tenants: Tenants) -> None:
    """What others' figures are made of; nothing of it is in our topic or the open one."""
    owner = tenants.owner
    penstock.create_topic(owner, "theirs/more")
    request_backfill(owner, THEIRS, "copy", "a")
    log.place_bookmark(owner, THEIRS, "theirs")
    stream.subscribe(owner, "theirs too", [THEIRS, OPEN])
    set_relay_group(owner, "their relay", ["a", "b"], 1, topics=[THEIRS])
    member = stream.join(owner, "theirs", "a")
    (lease,) = stream.check_in(owner, member)
    stream.release(owner, member, [lease])
    with pytest.raises(StaleLease):
        stream.commit(owner, member, [(lease, 1)])
    for _ in range(3):
        penstock.publish_batch(owner, [penstock.Message(THEIRS, b"x")] * 300)
        log.sequence(owner)
    penstock.publish_batch(owner, [penstock.Message(THEIRS, b"x")] * 7)


@proves("S22 of counts")
def test_what_others_do_changes_no_answer(db: ContractDatabase, tenants: Tenants) -> None:
    """Guard: sees_all, and the walls of each function. Who passes the walls sees all of it."""
    with as_login(tenants, ours(tenants)) as own:
        before = answers(own)
        they_do_all_sorts(tenants)
        assert answers(own) == before
        penstock.publish_batch(own, [penstock.Message(OURS, b"x")] * 3)
        status = log.status(own)
        assert (status.unsequenced_events, status.topics, status.subscriptions) == (3, 2, 2)
        assert status.rejected_commits is subscriptions.rejected_commits(own) is None
    whole = log.status(tenants.owner)
    assert (whole.unsequenced_events, whole.topics, whole.subscriptions) == (10, 4, 6)
    assert whole.rejected_commits == subscriptions.rejected_commits(tenants.owner) != 0
    assert whole.event_ids_ready is not None


def test_without_walls_all_figures_are_everybodys(db: ContractDatabase, tenants: Tenants) -> None:
    """Nobody was given a right in a namespace: nothing is hidden from the reader."""
    with as_login(tenants, tenants.login("reader")) as own:
        status = log.status(own)
        assert (status.topics, status.subscriptions) == (3, 3)
        assert status.rejected_commits is not None
        assert database.call(own, "slices_ready") == database.call(tenants.owner, "slices_ready")


@proves("S22 of counts", guard="sees_all")
def test_without_the_guard_they_are_seen(db: ContractDatabase, tenants: Tenants) -> None:
    """Mutant: everybody's business is everybody's."""
    guard: Guard = {
        "postgres": ("sees_all", "no_walls()", "true"),
        "mysql": ("sees_all", "given = 0", "TRUE"),
    }
    without(db, guard)
    with as_login(tenants, ours(tenants)) as own:
        before = answers(own)
        they_do_all_sorts(tenants)
        after = answers(own)
    told = {name for name in EVERYTHING if before[name] != after[name]}
    assert {"log_status", "unsequenced", "rejected_commits"} <= told


@proves("S22 of counts")
@pytest.mark.skipif("postgres" not in servers.chosen(), reason="asks PostgreSQL's catalog")
def test_nothing_that_asks_for_the_whole_log_is_left_out(database_url: str) -> None:
    """Every function that these roles may call without naming anything is one of them."""
    with database.connect(database_url) as own:
        found = own.execute(
            "SELECT p.proname FROM pg_proc AS p"
            " JOIN penstock.function_roles() AS f ON f.function = p.proname"
            " WHERE p.pronamespace = 'penstock'::regnamespace AND p.pronargs = p.pronargdefaults"
            " AND f.roles && '{consumer,publisher,reader}'"
        ).fetchall()
    known = {"current_history", "applied_migrations", "histories_of", "prepare_bulk"}
    # What is set, and how fast stores are: not what is in the log.
    known |= {"publish_bulk", "list_policies", "relays_claimed_by", "target_speeds"}
    # Who is asked: a relay to it compares that.
    known |= {"installation_id"}
    # Whether the sequencer rests: who publishes can see that by a clock.
    known |= {"wake_sequencer"}
    assert {name for (name,) in found} - known <= set(EVERYTHING)
