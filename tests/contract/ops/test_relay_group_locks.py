"""Relays with several sinks beside other calls: how rows are locked, and what is seen then."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.database import calls
from penstock.errors import InvalidArgument
from penstock.subscriptions import stream
from penstock.subscriptions.relay_groups import relay_groups, set_relay_group
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.kit.log import topic
from tests.kit.proof import proves
from tests.kit.stream import STREAM

RELAY = "everywhere"

#: The sinks are locked before their topics.
TOPICS_LAST: Guard = {
    "postgres": (
        "set_relay_group", "PERFORM lock_topic(g, 'consume') FROM unnest(present) AS g;", "",
    ),
    "mysql": ("set_relay_group", "CALL lock_topics(present, 'consume');", ""),
}  # fmt: skip
#: Whether a relay has taken the subscription is not looked at again.
LOOKS_ONCE: Guard = {
    "postgres": ("unsubscribe", "PERFORM require_left_relay(owner_id);", ""),
    "mysql": ("unsubscribe", "CALL require_left_relay(owner_id);", ""),
}


@proves("a relay stands where its quorum is", guard="the lock of its topics")
@pytest.mark.parametrize("guarded", [True, False])
def test_topics_are_locked_before_sinks(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Who has the topic gets a sink too. The other way round it ends in a deadlock."""
    monkeypatch.setattr(calls, "_TRIES", 1)
    own = db.connect()
    topic(own, 1, STREAM)
    set_relay_group(own, RELAY, "ab", 2, topics=[STREAM])
    if not guarded:
        without(db, TOPICS_LAST)
    first, second = db.connect(autocommit=False), db.connect()
    stream.subscribe(first, "another", [STREAM])
    with ThreadPoolExecutor(1) as pool:
        adds = pool.submit(set_relay_group, second, RELAY, ["c"], 2)
        db.wait_until_blocked(second)
        failed: list[BaseException | None] = []
        try:
            stream.subscribe(first, f"{RELAY}.a", [STREAM])
            first.commit()
        except Exception as error:
            failed.append(error)
            first.rollback()
        failed.append(adds.exception(30))
    assert any(failed) is not guarded
    if guarded:
        assert sorted(relay_groups(own)[RELAY].sinks) == ["a", "b", "c"]


@proves("a relay stands where its quorum is")
@proves("a relay stands where its quorum is", guard="the second look of a removal")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_sink_is_not_removed_while_a_relay_takes_it(db: ContractDatabase, guarded: bool) -> None:
    """The removal has looked before the relay took it: nothing of it may stay in the relay."""
    own = db.connect()
    topic(own, 1, STREAM)
    stream.subscribe(own, f"{RELAY}.a", [STREAM])
    if not guarded:
        without(db, LOOKS_ONCE)
    taking, removing = db.connect(autocommit=False), db.connect()
    set_relay_group(taking, RELAY, "ab", 1, topics=[STREAM])
    with ThreadPoolExecutor(1) as pool:
        removed = pool.submit(stream.unsubscribe, removing, f"{RELAY}.a")
        db.wait_until_blocked(removing)
        taking.commit()
        error = removed.exception(30)
    orphans = (
        "SELECT count(*) FROM penstock.relay_members AS r WHERE NOT EXISTS"
        " (SELECT 1 FROM penstock.subscriptions AS s WHERE s.id = r.subscription_id)"
    )
    assert db.run(orphans) == [(0 if guarded else 1,)]
    if guarded:
        assert isinstance(error, InvalidArgument)
        assert 'as its sink "a"' in str(error)
        assert sorted(relay_groups(own)[RELAY].sinks) == ["a", "b"]
        stream.unsubscribe(own, f"{RELAY}.a")
        assert sorted(relay_groups(own)[RELAY].sinks) == ["b"]
