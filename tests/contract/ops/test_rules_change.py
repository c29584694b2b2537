"""The rules of a relay change, and its sinks end where the older ones have left them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from ops.relay import places
from ops.relay.relay import Relay
from ops.relay.results import RelayResult
from ops.sinks.address import open_sink
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_relay import FAST
from tests.contract.ops.test_relay_left_out import Refusing
from tests.contract.ops.test_relay_rules import subscribed, typed
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION
from tests.relay.stores import Streams, StreamsServer
from tools.servers.nats import NatsServer

Relayed = Callable[..., RelayResult]


@pytest.fixture(params=["nats", "redis"])
def address(
    request: pytest.FixtureRequest, nats_server: NatsServer, streams_server: StreamsServer
) -> str:
    """A place that nobody else has, of a sink that is told nothing of what is left out, or is."""
    own = uuid.uuid4().hex
    if request.param == "nats":
        return f"nats://{nats_server.address}/{own}?create=true"
    return Streams(streams_server, own, STREAM).address


@pytest.fixture
def relayed(db: ContractDatabase, address: str) -> Relayed:
    """Runs with these rules until everything is sent, or something has failed."""

    def run(rules: str = "", refused: range = range(0)) -> RelayResult:
        with closing(open_sink(f"{address}{rules}")) as sink:
            front = Refusing(sink, refused) if refused else sink
            relay = Relay(db.url, SUBSCRIPTION, front, backoff=FAST)
            for _ in range(100):
                result = relay.run_for(0.5)
                if result.failures or result.drained:
                    return result
        raise AssertionError("nothing has happened")

    return run


def _own(db: ContractDatabase) -> Any:
    own = db.connect()
    subscribed(own)
    return own


@proves("what rules leave out is no loss")
def test_a_filter_is_taken_away(db: ContractDatabase, relayed: Relayed) -> None:
    """Guard: PassedPlaces.of. The first block after it is all given up, and changes nothing."""
    own = _own(db)
    typed(own, *"aabb")
    assert relayed("#type=a").events == 2
    typed(own, *"bbbb")
    assert (done := relayed("", refused=range(5, 9))).dead_letters == 4, done
    typed(own, *"ab")
    done = relayed("")
    assert (done.events, done.failures, done.drained) == (2, 0, True)


@proves("what rules leave out is no loss")
def test_events_choose_their_place_no_longer(db: ContractDatabase, relayed: Relayed) -> None:
    own = _own(db)
    typed(own, *"ab")
    assert relayed("").events == 2
    typed(own, *"ab")
    assert relayed("#to=out.{type}").events == 2
    typed(own, *"ab")
    for _ in range(2):
        done = relayed("")
        assert (done.events, done.failures, done.drained) == (2, 0, True)
        typed(own, *"ab")
    done = relayed("#to=out.{type}")
    assert (done.events, done.failures, done.drained) == (2, 0, True)


@proves("what rules leave out is no loss", guard="PassedPlaces")
def test_otherwise_what_rules_have_left_out_would_look_like_a_loss(
    db: ContractDatabase, relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _own(db)
    typed(own, *"ab")
    relayed("")
    typed(own, *"ab")
    relayed("#to=out.{type}")
    typed(own, *"ab")
    monkeypatch.setattr(places.PassedPlaces, "_lags", lambda *_: False)
    assert "SinkBehind" in relayed("").last_error


def test_who_puts_the_subscription_somewhere_is_remembered(
    db: ContractDatabase, relayed: Relayed
) -> None:
    """What a person has left out is no place that lags: it is recorded as left out."""
    own = _own(db)
    typed(own, *"abab")
    assert relayed("#type=a").events == 2
    typed(own, *"abab")
    stream.seek(own, SUBSCRIPTION, STREAM, 0, 7)
    done = relayed("")
    assert (done.events, done.failures) == (2, 0)
    ((last,),) = db.run("SELECT MAX(last_sequence) FROM penstock.left_out")
    assert last == 6
