"""Sinks of one relay that take turns stay open, with their channels and leases."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ops.relay import groups
from ops.relay.relay import Relay
from ops.sinks.base import Channel, SinkLease
from ops.sinks.jsonl import JsonlSink
from penstock.subscriptions import stream
from penstock.subscriptions.overview import lag
from penstock.subscriptions.relay_groups import set_relay_group
from tests.contract.databases import ContractDatabase
from tests.kit.log import topic, wait_until
from tests.kit.proof import proves
from tests.kit.sinks import InFront
from tests.kit.stream import STREAM, more

#: So many turns each sink has at least.
TURNS = 9


class Counted(InFront):
    """A sink that notes how often it and its channels are opened."""

    def __init__(self, folder: Path, name: str, opened: Counter[str]) -> None:
        super().__init__(JsonlSink(str(folder / name)))
        self._name, self._opened = name, opened
        opened[name] += 1

    def open(self, lease: SinkLease) -> Channel:
        self._opened[f"channel of {self._name}"] += 1
        return super().open(lease)


@proves("a relay stands where its quorum is", guard="that a sink stays open")
@pytest.mark.long_on("mysql", "mariadb")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_sink_stays_open_over_its_turns(
    db: ContractDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Two sinks and one thread; they leave when it is told to stop.  Guard: _Served keeps them.

    A machine that stood still may lose a lease, and so open a channel again: not in every turn.
    """
    monkeypatch.setattr(groups, "IDLE_SECONDS", 0.01)
    served, turns = groups._Served.turn, Counter[str]()

    def ends(one: groups._Served, seconds: float, stop: threading.Event) -> Any:
        turns[one.name] += 1
        try:
            return served(one, seconds, stop)
        finally:
            if not guarded:
                one.close()

    monkeypatch.setattr(groups._Served, "turn", ends)
    own, opened, stop = db.connect(), Counter[str](), threading.Event()
    topic(own, 1, STREAM)
    set_relay_group(own, "both", "ab", 1, topics=[STREAM])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            groups.serve,
            {name: lambda name=name: Counted(tmp_path, name, opened) for name in "ab"},  # type: ignore[misc]
            lambda name, sink: Relay(db.url, f"both.{name}", sink),
            threads=1,
            stop=stop,
        )
        try:
            for part in range(2):
                more(own, start=10 * part + 1)
                wait_until(lambda: not any(e.lag_events for e in lag(own)), "all is sent", 60)
            wait_until(lambda: min(turns["a"], turns["b"]) >= TURNS, "each had its turns", 60)
        finally:
            stop.set()
        done = running.result(60)
    assert [each.events for each in done] == [20, 20]
    if guarded:
        assert set(opened) == {"a", "b", "channel of a", "channel of b"}
        assert max(opened.values()) <= TURNS // 3
    else:
        assert opened["a"] >= TURNS
    assert not any(each.holder for each in lag(own))
    assert stream.position(own, "both.a", STREAM)[0] == 20
