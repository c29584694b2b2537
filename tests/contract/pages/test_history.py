"""The Python blocks of docs/reference/history.md run as they stand there, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from ops.seal import seal
from penstock.archive.targets import Target
from penstock.publishing.publish import publish_batch
from penstock.records import Event, Message
from tests.contract.databases import ContractDatabase
from tests.contract.pages.blocks import blocks_of, run
from tests.kit.copies import copy_all, drop
from tests.kit.log import drain, topic as create_topic

PAGE = "docs/reference/history.md"
TOPIC = "shop/orders"


def test_every_block_runs(
    db: ContractDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is sealed is in the archive only; a replay reads it and what follows."""
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", db.url)
    blocks = [block.replace("/mnt", str(tmp_path)) for block in blocks_of(PAGE)]
    assert len(blocks) == 5
    connection = db.connect()
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

    names: dict[str, Any] = run(
        PAGE, *blocks[:3], penstock=penstock, connection=connection, url=db.url, bill=bill
    )
    assert sum(int(line) for line in capsys.readouterr().out.split()) == 701
    assert came == list(range(1, 1_701))
    penstock.Consumer(db.url, "billing", handler=bill, archive=names["targets"]).run_until_idle()
    assert came[1_700:] == list(range(1_000, 1_701))
    run(PAGE, *blocks[3:], **names)  # at a time before all events, then at bookmarks
    assert "{('shop/orders', 0): 1700}" in capsys.readouterr().out
    assert penstock.stream.position(connection, "billing", TOPIC) == {0: 1_700}
    placed = {each.name: each.position for each in penstock.log.list_bookmarks(connection)}
    assert placed == {"before the migration": 1_700, "billed": 0}
