"""The Python blocks of the pages with one or two of them, and the list of all pages with code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow
import pytest

import penstock
from ops.seal import seal
from penstock.archive.targets import Target
from penstock.dagster import archived_topic
from penstock.database import timings
from penstock.records import Message
from tests.contract.databases import ContractDatabase
from tests.contract.pages.blocks import ROOT, blocks_of, run
from tests.kit.copies import copy_all
from tests.kit.log import drain, topic
from tests.kit.proof import proves

#: Every page with Python blocks, and the test that runs them.  Those with Spark run on PostgreSQL
#: each time, and docs/reference/spark.md on all engines in the long form.
RUN_BY = {
    "README.md": "tests/contract/pages/test_readme.py",
    "docs/archive.md": "tests/contract/pages/test_user_pages.py",
    "docs/consume.md": "tests/contract/pages/test_user_pages.py",
    "docs/publish.md": "tests/contract/pages/test_user_pages.py",
    "docs/queue.md": "tests/contract/pages/test_user_pages.py",
    "docs/spark.md": "tests/spark/test_page.py",
    "docs/reference/accounts.md": "tests/contract/accounts/test_acting.py",
    "docs/reference/archive.md": "tests/archive/test_page.py",
    "docs/reference/consumers.md": "tests/contract/pages/test_consumers.py",
    "docs/reference/coordination.md": "tests/contract/pages/test_other_pages.py",
    "docs/reference/dagster-projects.md": "tests/contract/pages/test_other_pages.py",
    "docs/reference/duties.md": "tests/contract/pages/test_other_pages.py",
    "docs/reference/gateway.md": "tests/contract/gateway/test_page.py",
    "docs/reference/history.md": "tests/contract/pages/test_history.py",
    "docs/reference/lease-hand-over.md": "tests/contract/pages/test_lease_hand_over.py",
    "docs/reference/metrics.md": "tests/contract/pages/test_other_pages.py",
    "docs/reference/publishing.md": "tests/contract/pages/test_publishing.py",
    "docs/reference/queue.md": "tests/contract/pages/test_queue.py",
    "docs/reference/spark.md": "tests/spark/test_page.py",
    "docs/reference/testing.md": "tests/testing/test_page.py",
    "docs/reference/sqs.md": "tests/contract/gateway/test_sqs.py",
}


class Once:
    """True at the first look only: the condition of a loop."""

    def __init__(self) -> None:
        self.looks = 0

    def __bool__(self) -> bool:
        self.looks += 1
        return self.looks == 1


@proves("pages run")
def test_every_page_with_code_has_a_test_that_runs_it() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    with_code = {
        page.relative_to(ROOT).as_posix()
        for page in pages
        if "```python\n" in page.read_text(encoding="utf-8")
    }
    assert with_code == set(RUN_BY)
    for page, test in RUN_BY.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def test_a_consumer_of_the_page_on_coordination(db: ContractDatabase, etcd_url: str) -> None:
    connection = db.connect()
    topic(connection, 2, "shop/orders")
    penstock.subscribe(connection, "billing", ["shop/orders"])
    penstock.publish(connection, "shop/orders", b"1")
    drain(connection)
    seen: list[bytes] = []
    consumer, loop = blocks_of("docs/reference/coordination.md")
    consumer = consumer.replace("etcd://127.0.0.1:2379", etcd_url).replace("=shop", f"={db.engine}")
    consumer = f"consumer = {consumer.strip()}\nconsumer.run()"
    handler = lambda event: seen.append(event.payload)  # noqa: E731
    run("docs/reference/coordination.md", consumer, penstock=penstock, url=db.url, bill=handler)
    assert seen == [b"1"]
    running = Once()
    loop = loop.replace("etcd://127.0.0.1:2379", etcd_url).replace('"shop"', f'"own-{db.engine}"')
    names = run("docs/reference/coordination.md", loop, partition_id=7, running=running, sequence=5)
    assert (running.looks, names["consumer"].held) == (2, {})
    assert names["registry"].position(7) == 5


def test_the_duties_of_a_fleet(db: ContractDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both names are of one database here: what one sequences the other leaves."""
    (block,) = blocks_of("docs/reference/duties.md")
    for name in ("ORDERS_URL", "BANK_URL"):
        monkeypatch.setenv(name, db.url)
    connection = db.connect()
    topic(connection, 1, "shop/orders")
    penstock.publish(connection, "shop/orders", b"1")
    names = run("docs/reference/duties.md", block, session=None)
    assert {each.state for each in names["outcomes"]} <= {"done", "left"}
    assert sum(each.events for each in names["outcomes"]) == 1


def test_the_metrics_of_an_application(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timings, "observer", None)
    (block,) = blocks_of("docs/reference/metrics.md")
    text = run("docs/reference/metrics.md", block)["text"]
    assert 'penstock_operation_seconds_count{operation="publish"}' in text
    connection = db.connect()
    topic(connection, 1, "shop/orders")
    penstock.publish(connection, "shop/orders", b"1")
    assert run("docs/reference/metrics.md", block)["text"] != text


def test_a_dagster_project_has_its_assets() -> None:
    """tests/dagster/test_projects.py runs the whole project of the examples."""
    first, second = blocks_of("docs/reference/dagster-projects.md")
    names: dict[str, Any] = run("docs/reference/dagster-projects.md", first)
    assert isinstance(names["defs"], dg.Definitions)
    dg.Definitions.validate_loadable(names["defs"])
    names = run(
        "docs/reference/dagster-projects.md",
        second,
        dg=dg,
        archived_topic=archived_topic,
        pyarrow=pyarrow,
    )
    assert isinstance(names["revenue_of_day"], dg.AssetsDefinition)


def test_what_the_page_on_the_archive_asks_the_database(
    db: ContractDatabase, tmp_path: Path
) -> None:
    """Those blocks of docs/reference/archive.md that need a database, on every engine."""
    first, *others = blocks_of("docs/reference/archive.md")
    (last,) = (each for each in others if "batches" in each)
    connection = db.connect()
    topic(connection, 2, "bank/accounts")
    penstock.publish_batch(connection, [Message("bank/accounts", b"%d" % n) for n in range(9)])
    drain(connection)
    seal(connection, "bank/accounts", max_age_seconds=0)
    copy_all(connection, "bank/accounts", Target("local", str(tmp_path)))
    names = run("docs/reference/archive.md", first, last, url=db.url, folder=str(tmp_path))
    assert sum(batch.num_rows for batch in names["batches"]) == names["first"].event_count
