"""A sink that takes a block and never answers: it has failed, also where turns end its calls."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ops.relay import pace, sink_calls
from ops.relay.relay import Relay
from ops.sinks.base import Channel, RelayBlock
from ops.sinks.jsonl import JsonlSink
from ops.sinks.pacing import Pacing
from ops.sinks.routing import Routing
from tests.contract.databases import ContractDatabase
from tests.contract.ops.test_relay import FAST
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.sinks import InFront
from tests.kit.stream import SUBSCRIPTION, filled

SECONDS = 30  # for what happens at once


class BlackHole(InFront):
    """Its calls end when they are told to, or not at all."""

    def __init__(self, folder: Path, *, is_deaf: bool) -> None:
        super().__init__(JsonlSink(str(folder)))
        self.routing = Routing(pacing=Pacing(breaker=1))
        self.began, self.over, self._is_deaf = threading.Event(), threading.Event(), is_deaf

    def send_block(self, channel: Channel, block: RelayBlock) -> None:
        """Say nothing."""
        self.over.clear()
        self.began.set()
        self.over.wait(SECONDS)
        raise ConnectionAbortedError("told to end")

    def abort(self, channel: Channel) -> None:
        """Hear it, or not."""
        if not self._is_deaf:
            self.over.set()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that does not end is left behind at once."""
    monkeypatch.setattr(sink_calls, "ABORT_SECONDS", 0.05)


def _relay(db: ContractDatabase, sink: BlackHole) -> Relay:
    return Relay(db.url, SUBSCRIPTION, sink, backoff=FAST, stop_seconds=0.05)


@proves("partitions are sent side by side")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("is_deaf", [False, True])
def test_a_call_that_a_turn_has_to_end_is_a_failure(
    db: ContractDatabase, tmp_path: Path, is_deaf: bool
) -> None:
    """Guard: `is_to_blame`.  Without it, the sink never failed and its breaker never opened."""
    filled(db.connect(), events=2)
    sink = BlackHole(tmp_path, is_deaf=is_deaf)
    relay = _relay(db, sink)
    with relay.joined() as connection:
        wait_until(lambda: relay.send_for(connection, 0.2).failures, "it has failed", SECONDS)
        done = relay.send_for(connection, 0.01)
        sink.over.set()
    assert (done.failures, done.events, done.drained) == (1, 0, False)
    assert done.last_error.endswith("did not answer within 0.05 s")
    assert relay._breaker.state != pace.CLOSED


@pytest.mark.usefixtures("quick")
def test_who_stops_the_relay_blames_no_sink(db: ContractDatabase, tmp_path: Path) -> None:
    """The call had less time than it was promised."""
    filled(db.connect(), events=2)
    sink, stop = BlackHole(tmp_path, is_deaf=False), threading.Event()

    def stops() -> None:
        sink.began.wait(SECONDS)
        stop.set()

    stopping = threading.Thread(target=stops)
    stopping.start()
    relay = _relay(db, sink)
    with relay.joined() as connection:
        done = relay.send_for(connection, SECONDS, stop=stop)
    stopping.join()
    assert sink.began.is_set()
    assert (done.failures, done.last_error) == (0, "")
