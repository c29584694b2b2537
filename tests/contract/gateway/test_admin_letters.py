"""Dead letters on the page: the filter in the address, all that match, one with its payload."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import penstock
from consumers.gateway.pages import letters
from penstock import database
from penstock.subscriptions import dead_letters, letter_tasks, queue
from penstock.upkeep.sweeping import sweep
from tests.contract.gateway.kit import Gateway
from tests.contract.gateway.page_kit import NASTY, Visitor, page_of, text_of
from tests.kit.proof import proves

_numbers = itertools.count(1)


@pytest.fixture
def name(gateway: Gateway) -> str:
    """A queue with three dead letters, the last one with another key, and text in all places."""
    owner, name = gateway.owner, f"mails{next(_numbers)}"
    penstock.create_topic(owner, f"{name}/all", create_namespaces=True)
    queue.subscribe(owner, name, [f"{name}/all"])
    queue.configure(owner, name, max_failures=1)
    for number in range(3):
        penstock.publish(
            owner,
            f"{name}/all",
            f"secret payload {NASTY}".encode() if number else b"\xff\x00",
            key=NASTY if number == 2 else "k",
            headers={NASTY: NASTY},
        )
    gateway.sequence()
    for each in queue.receive(owner, name, 10):  # one by one, so that ids are in this order
        queue.reject(owner, name, [each.receipt], reason=f"no address {NASTY}")
    return name


def ids(gateway: Gateway, name: str) -> list[int]:
    return [each.id for each in dead_letters.dead_letters(gateway.owner, name)]


def test_letters_are_filtered_by_the_address(gateway: Gateway, page: Visitor, name: str) -> None:
    assert f"{name} 3 0 0" in page.text("/letters")
    newest, *others = ids(gateway, name)
    reply = page.get("/letters", subscription=name, key=NASTY, reason="NO ADDRESS")
    assert b"<script" not in reply.body and f'id={newest}"' in reply.body.decode()
    assert not any(f'id={each}"' in reply.body.decode() for each in others)
    assert "no letters match, of 3 looked at" in page.text("/letters", subscription=name, type="t")
    assert "no letters match" in page.text("/letters", subscription=name, until="2020-01-31")
    assert page.get("/letters", subscription=name, state="alive").status == 400


def test_letters_come_in_parts(
    gateway: Gateway, page: Visitor, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "MOST_SHOWN", 2)
    newest, second, oldest = ids(gateway, name)
    first = page.get("/letters", subscription=name).body.decode()
    assert f"before={second}" in first and f'id={oldest}"' not in first
    rest = page.get("/letters", subscription=name, before=second).body.decode()
    assert f'id={oldest}"' in rest and f'id={newest}"' not in rest and "before=" not in rest


def test_what_is_looked_at_for_a_filter_is_bounded(
    page: Visitor, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "MOST_COUNTED", 2)
    monkeypatch.setattr(letters, "_STEP", 1)
    found = page.get("/letters", subscription=name, type="none")
    assert "of 2 looked at" in text_of(found) and b"before=" in found.body


def test_all_that_match_are_counted_first_and_the_sweep_does_it(
    gateway: Gateway, page: Visitor, name: str
) -> None:
    asked = page.text("/letters/act", subscription=name, action="redrive", key="k")
    assert "2 of 3 letters match." in asked and "Redrive 2" in asked
    assert page.post("/letters/act", subscription=name, action="redrive", key="k").status == 400
    told = page.post(
        "/letters/act", subscription=name, action="redrive", key="k", why="<b>it is open</b>"
    )
    assert (told.status, told.headers["location"]) == (303, f"/tasks?subscription={name}")
    assert "waits for the sweep" in page.text("/tasks", subscription=name)
    assert sweep(gateway.owner).task_letters == 2
    assert len(ids(gateway, name)) == 1
    with page_of(gateway.db.url) as later:
        reply = later.get("/tasks", subscription=name)
    assert "done" in text_of(reply) and b"<b>" not in reply.body
    (task,) = letter_tasks.tasks(gateway.owner, name)
    assert (task.changed, task.reason) == (2, "<b>it is open</b> (Ada <i>)")


def test_a_task_is_cancelled_on_the_page(gateway: Gateway, page: Visitor, name: str) -> None:
    page.post("/letters/act", subscription=name, action="drop", why="x")
    (task,) = letter_tasks.tasks(gateway.owner, name)
    assert page.post("/tasks/cancel", task=task.id).status == 303
    assert "cancelled by Ada <i>" in page.text("/tasks", subscription=name)
    assert sweep(gateway.owner).task_letters == 0 and len(ids(gateway, name)) == 3


@proves("the page of the gateway")
def test_a_payload_is_shown_to_those_who_are_recorded(
    gateway: Gateway, page: Visitor, name: str
) -> None:
    """Guard: the record and the look are one transaction, made by a POST."""
    newest, _, oldest = ids(gateway, name)
    reply = page.get("/letter", subscription=name, id=newest)
    assert f"no address {NASTY}" in text_of(reply) and b"<script" not in reply.body
    assert b"secret payload" not in reply.body
    shown = page.post("/letter", subscription=name, id=newest)
    assert f"secret payload {NASTY}" in text_of(shown) and b"<script" not in shown.body
    assert "ff 00" in text_of(page.post("/letter", subscription=name, id=oldest))
    looks = database.call(gateway.owner, "list_looks", max_rows=2)
    assert [row[2:] for row in looks] == [
        ("Ada <i>", f"dead letter {each} of {name}") for each in (oldest, newest)
    ]
    assert f"dead letter {newest} of {name}" in page.text("/audit")
    assert page.post("/letter", subscription=name, id=9**9).status == 404
    assert len(database.call(gateway.owner, "list_looks", max_rows=2)) == 2
    event = page.post("/event", topic=f"{name}/all", partition=0, sequence=2)
    assert f"secret payload {NASTY}" in text_of(event) and b"<script" not in event.body
    (look,) = database.call(gateway.owner, "list_looks", max_rows=1)
    assert look[3] == f"event 2 of {name}/all, partition 0"
    assert page.post("/event", topic=f"{name}/all", partition=0, sequence=9).status == 404


def test_without_the_right_nobody_sees_a_payload(gateway: Gateway, name: str) -> None:
    (newest, *_), before = ids(gateway, name), _looks(gateway)
    login = gateway.tenants.login("reader")
    with page_of(gateway.tenants.url_of(login)) as page:
        assert page.post("/letter", subscription=name, id=newest).status == 409
        assert page.post("/event", topic=f"{name}/all", partition=0, sequence=2).status == 409
        assert b"secret" not in page.get("/letter", subscription=name, id=newest).body
    assert _looks(gateway) == before


def test_a_page_that_only_reads_shows_payloads_and_acts_on_nothing(
    gateway: Gateway, name: str
) -> None:
    newest, *_ = ids(gateway, name)
    with page_of(gateway.db.url, writes=False) as page:
        assert page.post("/letter", subscription=name, id=newest).status == 200
        for path, form in (
            ("/letter/act", {"id": newest, "action": "drop"}),
            ("/letters/act", {"action": "drop", "why": "x"}),
            ("/tasks/cancel", {"task": 1}),
        ):
            assert page.post(path, subscription=name, **form).status == 403
    assert len(ids(gateway, name)) == 3 and letter_tasks.tasks(gateway.owner, name) == []


def test_one_letter_is_redriven_or_dropped(gateway: Gateway, page: Visitor, name: str) -> None:
    newest, second, _ = ids(gateway, name)
    assert page.post("/letter/act", subscription=name, id=newest, action="drop").status == 303
    assert page.post("/letter/act", subscription=name, id=second, action="redrive").status == 303
    assert page.post("/letter/act", subscription=name, id=second, action="eat").status == 400
    assert [each.event.key for each in queue.receive(gateway.owner, name, 5, wait_seconds=5)] == [
        "k"
    ]
    assert len(ids(gateway, name)) == 1


def _looks(gateway: Gateway) -> list[Any]:
    return database.call(gateway.owner, "list_looks", max_rows=1)
