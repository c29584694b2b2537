"""The code of docs/consumers.md runs as it is on the page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock import subscriptions
from penstock.consumer.options import ConsumerOptions
from penstock.subscriptions import stream
from tests.kit.log import drain, topic

PAGE = Path(__file__).resolve().parents[1] / "docs" / "consumers.md"


def test_every_block_runs(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with events to consume; none of them fails."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) > 4
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE invoices (customer text)")
        topic(connection, 2, "shop/orders")
        stream.subscribe(connection, "billing", ["shop/orders"])
        for block in (each for each in blocks if "__main__" not in each):
            messages = [penstock.Message("shop/orders", b"1", key=f"k{n}") for n in range(4)]
            penstock.publish_batch(connection, messages)
            drain(connection)
            names: dict[str, object] = {"url": database_url, "penstock": penstock}
            exec(compile(block, PAGE.name, "exec"), names)
            if "app" not in names:
                assert [each.lag_events for each in subscriptions.lag(connection, "billing")] == [
                    0,
                    0,
                ]
        assert connection.execute("SELECT count(*) FROM invoices").fetchone() == (4,)
    assert "shop/orders" in capsys.readouterr().out


def test_the_main_program_runs_until_it_is_told_to_end(database_url: str) -> None:
    """The block as a file of its own; SIGTERM ends it without a traceback."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (program,) = (each for each in blocks if "__main__" in each)
    with psycopg.connect(database_url, autocommit=True) as connection:
        topic(connection, 1, "shop/orders")
        stream.subscribe(connection, "billing", ["shop/orders"])
        penstock.publish(connection, "shop/orders", b"1")
        drain(connection)
    with subprocess.Popen(
        [sys.executable, "-u", "-c", program],
        env={**os.environ, "PENSTOCK_DATABASE_URL": database_url},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "shop/orders 1 b'1'\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "ended\n", "")


def test_every_option_is_explained() -> None:
    """An option that is not on the page is not there for its users."""
    text = PAGE.read_text(encoding="utf-8")
    options = [each.name for each in fields(ConsumerOptions)]
    assert len(options) > 20
    assert [name for name in options if f"`{name}`" not in text] == []
