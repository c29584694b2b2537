"""A worker that rests is not stuck, however long its rests and however short the limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.consumer.running.worker import ConsumerWorker, Worker
from penstock.leases.loop import LoopSetting, LoopStats, Rounds
from penstock.upkeep import workers
from penstock.upkeep.workers import AccountsWorker, SequencerWorker, SweepWorker
from tests.contract.databases import ContractDatabase
from tests.kit.log import wait_until

HOUR = 3600.0

Make = Callable[[str], Worker]


def _rests(worker: Worker) -> bool:
    """Whether it looks as if it had just gone round, again and again."""
    looks = [(time.monotonic(), worker.last_turn()) for _ in range(3)]
    return all(turn >= look for look, turn in looks)


@pytest.mark.parametrize("make", [lambda url: SweepWorker(url, HOUR), AccountsWorker])
def test_a_worker_that_rests_is_not_stuck(
    db: ContractDatabase, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--sweep-seconds` above `--stuck-seconds`, /livez said 503 between two sweeps."""
    monkeypatch.setattr(workers, "MEASURE_EVERY_SECONDS", HOUR)
    worker, stop = make(db.url), threading.Event()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    try:
        wait_until(lambda: _rests(worker), "it rests")
    finally:
        stop.set()
        thread.join(30)


class _Idle(Rounds):
    """A loop without work."""

    def round(self, connection: Any) -> int:
        return 0


def test_a_sequencer_that_was_woken_rests_no_longer() -> None:
    worker = SequencerWorker("")
    worker.turned = time.monotonic() - HOUR
    listener: Any = SimpleNamespace(wait=lambda _: _rests(worker))
    worker.rest(threading.Event(), listener, HOUR)
    assert worker.wakes == 1
    assert not _rests(worker)


def test_a_loop_that_rests_is_not_stuck() -> None:
    loop = _Idle(LoopSetting("", "billing", "me"), idle_seconds=HOUR)
    loop.stats = LoopStats(last_round=time.monotonic() - HOUR)
    worker = ConsumerWorker("billing", lambda: loop)
    worker._state = (loop, {})
    assert not _rests(worker)
    seen: list[bool] = []

    def wait(*_: Any) -> list[str]:
        seen.append(_rests(worker))
        return []

    loop._listener, loop._wake = SimpleNamespace(wait=wait), SimpleNamespace(clear=lambda: None)  # type: ignore[assignment]
    loop.rest()
    assert seen == [True]
    assert not _rests(worker), "a notice has ended the rest: from here on it may hang"
    loop.stats.rests_until = time.monotonic() - 7
    assert 7 <= time.monotonic() - worker.last_turn() < HOUR, "stuck since the end of its rest"
