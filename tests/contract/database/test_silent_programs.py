"""With the limits as they are: each program goes on within its lease and ten seconds.

Behind what acknowledges and forwards nothing, one flow or all of them.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ops.relay.relay import Relay
from ops.sinks.jsonl import JsonlSink
from penstock.consumer.stream.consumer import Consumer
from penstock.leases.loop import Rounds
from tests.contract.databases import ContractDatabase
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.kit.silent_proxy import silent_proxy
from tests.kit.stream import SUBSCRIPTION, filled, more, running, stored

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

LEASE_SECONDS = 10.0


def _loop(program: str, url: str, folder: Path) -> Rounds:
    if program == "relay":
        return Relay(url, SUBSCRIPTION, JsonlSink(folder))
    return Consumer(url, SUBSCRIPTION, handler=lambda _: None)


@proves("a silent connection stops nobody")
@pytest.mark.parametrize("program", ["stream", "relay"])
@pytest.mark.parametrize("whose", [f"penstock {SUBSCRIPTION}", "penstock keeper", ""])
def test_it_goes_on(db: ContractDatabase, tmp_path: Path, program: str, whose: str) -> None:
    own = db.connect()
    filled(own, events=1)
    with silent_proxy(db.url) as proxy, running(_loop(program, proxy.url, tmp_path)):
        wait_until(lambda: stored(own) == 1, "the first event is done")
        proxy.silence(whose.encode())
        begun = time.monotonic()
        more(own, events=1, start=2)
        wait_until(lambda: stored(own) == 2, "the second one is done", 60)
        assert time.monotonic() - begun < LEASE_SECONDS + 10
