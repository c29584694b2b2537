"""`Consumer.run()` without a stop: SIGINT and SIGTERM end it cleanly, as a main program needs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

import penstock
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.kit.proof import proves
from tests.kit.stream import STREAM, SUBSCRIPTION, filled

PLAIN = """
import signal, sys, time
import penstock

def handle(event):
    print("handles", flush=True)
    time.sleep(float(sys.argv[2]))

before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
penstock.Consumer(sys.argv[1], "billing", handler=handle, commit_every_seconds=60).run()
after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
print("ended", before == after, flush=True)
"""
ASYNC = """
import asyncio, signal, sys
import penstock

async def handle(event):
    print("handles", flush=True)
    await asyncio.sleep(float(sys.argv[2]))

async def main():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    await penstock.AsyncConsumer(sys.argv[1], "billing", handler=handle).run()
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    print("ended", before == after, flush=True)

asyncio.run(main())
"""
PROGRAMS = {"plain": PLAIN, "async": ASYNC}


@contextmanager
def at_work(db: ContractDatabase, program: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """The program, once its handler is at the first event."""
    filled(db.connect(), events=1)
    code = PROGRAMS[program].replace('"billing"', repr(SUBSCRIPTION))
    with subprocess.Popen(
        [sys.executable, "-c", code, db.url, str(seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "handles\n"
            yield process
        finally:
            process.kill()


#: The one is taken as the other is, on every engine.
SIGNALS = [
    pytest.param(signal.SIGINT, marks=pytest.mark.long_on("mysql", "mariadb")),
    signal.SIGTERM,
]


@proves("a signal ends a consumer cleanly")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_signal_ends_it_cleanly(
    db: ContractDatabase, program: str, number: signal.Signals
) -> None:
    """Guard: stopped_by_signals; without it Ctrl-C is a traceback and SIGTERM commits nothing."""
    with at_work(db, program, 0.2) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "ended True\n", "")
    own = db.connect()
    assert stream.position(own, SUBSCRIPTION, STREAM) == {0: 1}
    assert penstock.subscriptions.members(own, SUBSCRIPTION) == []


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.long_on("mysql")
def test_a_second_signal_waits_for_no_handler(db: ContractDatabase, program: str) -> None:
    with at_work(db, program, 60) as process:
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
    assert process.returncode == -signal.SIGTERM
