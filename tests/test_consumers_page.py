"""The code of docs/consumers.md runs as it stands there."""

from __future__ import annotations

import re
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
        for block in blocks:
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


def test_every_option_is_explained() -> None:
    """An option that is not on the page is not there for its users."""
    text = PAGE.read_text(encoding="utf-8")
    options = [each.name for each in fields(ConsumerOptions)]
    assert len(options) > 20
    assert [name for name in options if f"`{name}`" not in text] == []
