"""The Python blocks of docs/history.md run as they stand there, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

import penstock
from ops.seal import seal
from penstock.archive.targets import Target
from penstock.publishing.publish import publish_batch
from penstock.records import Event, Message
from tests.kit.copies import copy_all, drop
from tests.kit.log import drain, topic as create_topic

PAGE = Path(__file__).resolve().parents[2] / "docs" / "history.md"
TOPIC = "shop/orders"


def test_every_block_runs(
    connection: psycopg.Connection[Any],
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is sealed is in the archive only; a replay reads it and what follows."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", database_url)
    text = PAGE.read_text(encoding="utf-8").replace("/mnt", str(tmp_path))
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 5
    create_topic(connection, 1, TOPIC)
    publish_batch(connection, [Message(TOPIC, b"%d" % number) for number in range(1, 1_601)])
    drain(connection)
    seal(connection, TOPIC, max_events=400)
    nearby = Target("nearby", str(tmp_path / "archive"))
    copy_all(connection, TOPIC, nearby)
    drop(connection, TOPIC, [nearby])
    publish_batch(connection, [Message(TOPIC, b"%d" % number) for number in range(1_601, 1_701)])
    drain(connection)
    penstock.subscribe(connection, "billing", [TOPIC], "latest")

    came: list[int] = []

    def bill(event: Event) -> None:
        came.append(event.sequence)

    names: dict[str, Any] = {
        "penstock": penstock, "connection": connection, "url": database_url, "bill": bill,
    }  # fmt: skip
    for block in blocks[:3]:
        exec(compile(block.replace(".run()", ".run_until_idle()"), PAGE.name, "exec"), names)
    assert sum(int(line) for line in capsys.readouterr().out.split()) == 701
    assert came == list(range(1, 1_701))
    penstock.Consumer(
        database_url, "billing", handler=bill, archive=names["targets"]
    ).run_until_idle()
    assert came[1_700:] == list(range(1_000, 1_701))
    for block in blocks[3:]:  # at a time before all events, then at bookmarks
        exec(compile(block, PAGE.name, "exec"), names)
    assert "{('shop/orders', 0): 1700}" in capsys.readouterr().out
    assert penstock.stream.position(connection, "billing", TOPIC) == {0: 1_700}
    placed = {each.name: each.position for each in penstock.log.list_bookmarks(connection)}
    assert placed == {"before the migration": 1_700, "billed": 0}
