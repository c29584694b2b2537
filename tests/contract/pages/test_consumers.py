"""The code of docs/reference/consumers.md runs as it is on the page."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import fields

import pytest

import penstock
from penstock import subscriptions
from penstock.consumer.handlers.options import ConsumerOptions
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase
from tests.contract.pages import asgi
from tests.contract.pages.blocks import blocks_of, run, text_of
from tests.kit.log import drain, topic

PAGE = "docs/reference/consumers.md"


def test_every_block_runs(db: ContractDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with events to consume; none of them fails."""
    blocks = [each for each in blocks_of(PAGE) if "__main__" not in each and "FastAPI" not in each]
    assert len(blocks) > 4
    connection = db.connect()
    connection.execute("CREATE TABLE invoices (customer text)")
    topic(connection, 2, "shop/orders")
    stream.subscribe(connection, "billing", ["shop/orders"])
    for block in blocks:
        messages = [penstock.Message("shop/orders", b"1", key=f"k{n}") for n in range(4)]
        penstock.publish_batch(connection, messages)
        drain(connection)
        names = run(PAGE, block, url=db.url, penstock=penstock)
        if "app" not in names:
            lags = [each.lag_events for each in subscriptions.lag(connection, "billing")]
            assert lags == [0, 0]
    assert list(connection.execute("SELECT count(*) FROM invoices").fetchall()) == [(4,)]
    assert "shop/orders" in capsys.readouterr().out


def test_the_main_program_runs_until_it_is_told_to_end(db: ContractDatabase) -> None:
    """The block as a file of its own; SIGTERM ends it without a traceback."""
    (program,) = (each for each in blocks_of(PAGE) if "__main__" in each)
    connection = db.connect()
    topic(connection, 1, "shop/orders")
    stream.subscribe(connection, "billing", ["shop/orders"])
    penstock.publish(connection, "shop/orders", b"1")
    drain(connection)
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        env={**os.environ, "PENSTOCK_DATABASE_URL": db.url},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "shop/orders 1 b'1'\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "ended\n", "")


def test_every_option_is_explained() -> None:
    """An option that is not on the page is not there for its users."""
    text = text_of(PAGE)
    options = [each.name for each in fields(ConsumerOptions)]
    assert len(options) > 20
    assert [name for name in options if f"`{name}`" not in text] == []


def test_a_web_application_consumes_while_it_serves(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request publishes; at the end of the lifespan what is in hand is committed."""
    (block,) = (each for each in blocks_of(PAGE) if "FastAPI" in each)
    connection = db.connect()
    topic(connection, 2, "shop/orders")
    stream.subscribe(connection, "billing", ["shop/orders"])
    with asgi.importable(monkeypatch):
        names = run(PAGE, block, url=db.url, penstock=penstock)
    said: list[str] = []

    async def serve() -> None:
        assert await asgi.post(names["app"], "/orders/Ada") == 200
        await asyncio.to_thread(drain, connection)
        async with asgi.served(names["app"]):
            while not said:
                said.extend(capsys.readouterr().out.splitlines())
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(serve(), 30))
    assert said == ["billed Ada"]
    assert sum(stream.position(connection, "billing", "shop/orders").values()) == 1
