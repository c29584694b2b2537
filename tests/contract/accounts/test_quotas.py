"""How much an account may publish: events and bytes a second, and how much may wait."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock import accounts, database, log
from penstock.cli import main
from penstock.database import config
from penstock.errors import InvalidArgument, QuotaExceeded
from penstock.subscriptions import queue, stream
from tests.contract.accounts.kit import Account, account, act_as, as_account, gateway
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.contract.tenants import Tenants, as_login
from tests.kit.proof import proves

TOPIC = "shop/orders"
_EVENT: dict[str, Any] = dict.fromkeys(
    ("key", "type", "content_type", "headers", "event_id", "partition", "not_before", "dedup_key")
)
USED: Guard = {
    "postgres": ("quota_problem", "used.events >= 10 * quota.max_events", "false"),
    "mysql": ("quota_problem", "COALESCE(used_events >= 10 * most_events, FALSE)", "FALSE"),
}
COUNTED: Guard = {
    "postgres": (
        "count_published",
        "pg_backend_pid(), count_published.events,",
        "pg_backend_pid(), 0,",
    ),
    "mysql": ("count_published", "CONNECTION_ID(), events,", "CONNECTION_ID(), 0,"),
}
NOTED: Guard = {
    "postgres": ("acts_within_quota", "= '+'", "= '*'"),
    "mysql": ("acts_within_quota", "= '+'", "= '*'"),
}
FRESH: Guard = {
    "postgres": (
        "quota_problem",
        "AND w.measured_at > clock_timestamp() - interval '5 seconds'",
        "",
    ),
    "mysql": (
        "quota_problem",
        "AND w.measured_at > UTC_TIMESTAMP(6) - INTERVAL 5 SECOND",
        "",
    ),
}


@pytest.fixture
def login(tenants: Tenants, shop: Account) -> str:
    """A gateway's."""
    return gateway(tenants)


def _publish(tenants: Tenants, login: str, shop: Account, payload: bytes = b"x") -> None:
    with as_account(tenants, login, shop) as own:
        penstock.publish(own, TOPIC, payload)


def _events(tenants: Tenants) -> int:
    log.sequence(tenants.owner)
    return len(log.fetch(tenants.owner, TOPIC, 0, 1, max_events=1_000))


def _ten_seconds_pass(db: ContractDatabase) -> None:
    db.run("UPDATE penstock.account_published SET second = second - 10")


def _batch(own: Any, topic: str, **more: Any) -> object:
    messages = [penstock.Message(topic, b"x", **more)] * 2
    return penstock.publish_batch(own, messages)


#: Each way to publish that a gateway has, and how many events it publishes.
WAYS: dict[str, tuple[int, Callable[[Any, str], object]]] = {
    "publish": (1, lambda own, topic: penstock.publish(own, topic, b"x")),
    "publish with a time": (
        1,
        lambda own, topic: database.call(
            own, "publish", topic=topic, payload=b"x", strict=True, **_EVENT
        ),
    ),
    "publish_batch of plain events": (2, _batch),
    "publish_batch of strict ones": (
        2,
        lambda own, topic: penstock.publish_batch(
            own, [penstock.Message(topic, b"x", key="k")] * 2, strict=True
        ),
    ),
}


@proves("quotas of accounts")
@pytest.mark.parametrize("way", WAYS)
def test_each_way_counts_and_is_refused(
    db: ContractDatabase, tenants: Tenants, shop: Account, login: str, way: str
) -> None:
    """Over ten seconds; then nothing is written, and the error says when to come again."""
    events, publish = WAYS[way]
    accounts.set_quota(tenants.owner, "shop", max_events=1)
    before = _events(tenants)
    for _ in range(10 // events):
        with as_account(tenants, login, shop) as own:
            publish(own, TOPIC)
    with pytest.raises(QuotaExceeded) as refused, as_account(tenants, login, shop) as own:
        publish(own, TOPIC)
    assert 1 <= refused.value.retry_seconds <= 10
    assert _events(tenants) == before + 10
    used = accounts.quota_of(tenants.owner, "shop")
    assert used is not None
    assert (used.events, used.bytes, used.max_events) == (10, 10, 1)
    _ten_seconds_pass(db)
    with as_account(tenants, login, shop) as own:
        publish(own, TOPIC)


@proves("quotas of accounts")
def test_bytes_count_too(tenants: Tenants, shop: Account, login: str) -> None:
    """What was used before counts: one call may go over it."""
    accounts.set_quota(tenants.owner, "shop", max_bytes=10)
    _publish(tenants, login, shop, b"x" * 99)
    _publish(tenants, login, shop, b"x" * 99)
    with pytest.raises(QuotaExceeded):
        _publish(tenants, login, shop)


@proves("quotas of accounts")
def test_others_and_logins_are_not_asked(tenants: Tenants, shop: Account, login: str) -> None:
    """Nor is an account that has no quota any more."""
    accounts.set_quota(tenants.owner, "shop", max_bytes=1)
    bank = account(tenants.owner, "bank")
    _publish(tenants, login, shop, b"x" * 10)
    with pytest.raises(QuotaExceeded):
        _publish(tenants, login, shop)
    with as_account(tenants, login, bank) as own:
        penstock.publish(own, "bank/orders", b"x" * 99)
    penstock.publish(tenants.owner, TOPIC, b"x" * 99)
    accounts.set_quota(tenants.owner, "shop", max_requests=1)
    _publish(tenants, login, shop)
    accounts.set_quota(tenants.owner, "shop")
    assert accounts.quota_of(tenants.owner, "shop") is None
    _publish(tenants, login, shop)


@proves("quotas of accounts", guard="what was used, the note of act_as")
@pytest.mark.parametrize("guard", [USED, COUNTED, NOTED])
def test_without_a_part_of_it_there_is_no_quota(
    db: ContractDatabase, tenants: Tenants, shop: Account, login: str, guard: Guard
) -> None:
    """Mutants: what was used is not asked for, not counted, or act_as has noted no quota."""
    accounts.set_quota(tenants.owner, "shop", max_events=1)
    without(db, guard)
    for _ in range(12):
        _publish(tenants, login, shop)


@proves("quotas of accounts")
def test_sessions_of_an_account_do_not_wait_for_each_other(
    tenants: Tenants, shop: Account, login: str
) -> None:
    """Both have published twice and are open: no row, and no gap, is locked for another."""
    accounts.set_quota(tenants.owner, "shop", max_events=100)
    with as_login(tenants, login) as one, as_login(tenants, login) as two:
        for own in (one, two):
            if database.dialect_of(own) == "postgres":
                database.execute(own, "SET lock_timeout = '1s'")
            else:
                database.execute(own, "SET SESSION innodb_lock_wait_timeout = 1")
            database.execute(own, "BEGIN")
            act_as(own, shop)
        for own in (one, two, one, two):
            penstock.publish(own, TOPIC, b"x")
        for own in (one, two):
            database.execute(own, "COMMIT")
    used = accounts.quota_of(tenants.owner, "shop")
    assert used is not None
    assert used.events == 4


def _waits(tenants: Tenants) -> int:
    log.sequence(tenants.owner)
    return int(database.call(tenants.owner, "measure_accounts", max_readers=100)[0][0])


@proves("quotas of accounts")
def test_what_waits_ends_publishing(
    db: ContractDatabase, tenants: Tenants, shop: Account, login: str
) -> None:
    """Of the account's queue and stream, as measured; an old measurement counts for nothing."""
    owner = tenants.owner
    assert _waits(tenants) == 0
    accounts.set_quota(owner, "shop", max_waiting=4)
    assert _waits(tenants) == 0
    _publish(tenants, login, shop)
    assert _waits(tenants) == 1
    used = accounts.quota_of(owner, "shop")
    assert used is not None
    assert used.waiting == 4
    with pytest.raises(QuotaExceeded) as refused:
        _publish(tenants, login, shop)
    assert refused.value.retry_seconds == 5
    _a_minute_passes(db)
    _publish(tenants, login, shop)
    assert _waits(tenants) == 1
    queue.purge(owner, TOPIC)
    member = stream.join(owner, "shop/stream", "a")
    (lease,) = stream.check_in(owner, member)
    stream.commit(owner, member, [(lease, 3)])
    assert _waits(tenants) == 0
    _publish(tenants, login, shop)


@proves("quotas of accounts", guard="the time of a measurement")
def test_without_its_time_an_old_measurement_counts(
    db: ContractDatabase, tenants: Tenants, shop: Account, login: str
) -> None:
    """Mutant."""
    accounts.set_quota(tenants.owner, "shop", max_waiting=1)
    without(db, FRESH)
    assert _waits(tenants) == 1
    _a_minute_passes(db)
    with pytest.raises(QuotaExceeded):
        _publish(tenants, login, shop)


def _a_minute_passes(db: ContractDatabase) -> None:
    minute = "interval '1 minute'" if db.engine == "postgres" else "INTERVAL 1 MINUTE"
    db.run(f"UPDATE penstock.account_waiting SET measured_at = measured_at - {minute}")
    db.run("UPDATE penstock.account_published SET second = second - 70")


def test_what_is_long_past_is_forgotten(
    db: ContractDatabase, tenants: Tenants, shop: Account, login: str
) -> None:
    accounts.set_quota(tenants.owner, "shop", max_events=5)
    _publish(tenants, login, shop)
    _a_minute_passes(db)
    _publish(tenants, login, shop)
    assert _waits(tenants) == 0
    assert db.run("SELECT events FROM penstock.account_published") == [(1,)]


def test_the_command_sets_and_shows_it(
    db: ContractDatabase,
    tenants: Tenants,
    shop: Account,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And the audit has both."""
    monkeypatch.setenv(config.URL_VARIABLE, db.url)

    def run(*arguments: str) -> str:
        assert main.run(["account", "quota", shop.name, "--output", "json", *arguments]) == 0
        return capsys.readouterr().out

    assert json.loads(run("--max-events", "5"))[0]["max_events"] == 5
    assert json.loads(run())[0]["set_by"]
    assert json.loads(run("--unlimited")) == []
    for limit in ("max_events", "max_requests"):
        with pytest.raises(InvalidArgument):
            accounts.set_quota(tenants.owner, "shop", **{limit: 0})
    accounts.set_quota(tenants.owner, "shop", max_requests=7)
    key = accounts.find_key(tenants.owner, shop.key_id)
    assert key is not None
    assert key.max_requests == 7
    done = [each.action for each in accounts.audit_of(tenants.owner, "shop")]
    assert done.count("quota") == 3
