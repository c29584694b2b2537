"""The page in a real browser: filter, redrive what matches, pause, revoke a key.

With PENSTOCK_PICTURES=docs/images it also takes the pictures of docs/reference/gateway.md.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import penstock
from penstock import accounts, subscriptions
from penstock.subscriptions import dead_letters, queue, stream
from penstock.upkeep.sweeping import sweep
from tests.contract.gateway.kit import Client, Gateway
from tests.contract.gateway.page_kit import KEY, NASTY, Visitor
from tests.kit.browser import Browser, browser

QUEUE, TOPIC = "store/mails", "store/mails"
WIDE, NARROW = (1280, 900), (390, 844)

pytestmark = pytest.mark.long


def filled(owner: Any) -> None:
    """A shop with a queue in which something of each kind waits, and streams."""
    for topic, partitions in ((TOPIC, 1), ("store/orders", 4), ("till/payments", 2)):
        penstock.create_topic(owner, topic, partitions, create_namespaces=True)
    queue.subscribe(owner, QUEUE, [TOPIC])
    for name, topic in (("billing", "store/orders"), ("ledger", "till/payments")):
        stream.subscribe(owner, name, [topic])
    for number in range(60):
        for topic in (TOPIC, "store/orders", "till/payments"):
            body = f'{{"number": {number}, "note": "{NASTY}"}}'.encode()
            key = f"customer-{number % 7}"
            penstock.publish(owner, topic, body, key=key, type="mail", content_type="text/json")


def worked(owner: Any) -> None:
    """Some mails failed for good, some wait for their retry, some are out; a consumer works."""
    reasons = ("no address", f"the server said {NASTY}", "the mailbox is full")
    queue.configure(owner, QUEUE, max_failures=1)
    for number, each in enumerate(queue.receive(owner, QUEUE, 12)):
        queue.reject(owner, QUEUE, [each.receipt], reason=reasons[number % 3])
    queue.configure(owner, QUEUE, max_failures=5)
    taken = queue.receive(owner, QUEUE, 6)
    queue.reject(owner, QUEUE, [each.receipt for each in taken], delay_seconds=3_600)
    queue.receive(owner, QUEUE, 5)
    member = stream.join(owner, "billing", "worker-1")
    leases = stream.check_in(owner, member)
    stream.commit(owner, member, [(each, each.position + 1) for each in leases[:2]])


class Pictures:
    """Takes pictures where somebody wants them."""

    def __init__(self, tab: Browser) -> None:
        self._tab = tab
        self._folder = os.environ.get("PENSTOCK_PICTURES", "")

    def take(self, name: str, size: tuple[int, int] = WIDE, *, dark: bool = False) -> None:
        if self._folder:
            self._tab.size(*size, dark=dark)
            file = Path(self._folder) / f"page-{name}.png"
            self._tab.picture(file)
            # So many colours are enough, and half of the bytes.
            Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)
            self._tab.size(*WIDE)


def test_a_person_filters_redrives_pauses_and_revokes(
    gateway: Gateway, shared_page: Visitor, tmp_path: Path
) -> None:
    owner, address = gateway.owner, f"http://127.0.0.1:{shared_page.port}"
    filled(owner)
    gateway.sequence()
    worked(owner)
    with browser(tmp_path) as tab:
        pictures = Pictures(tab)
        tab.size(*WIDE)
        tab.open(address)
        tab.fill("person", "Ada")
        tab.fill("key", KEY)
        tab.press("Sign in")
        assert "store/orders" in tab.text() and "Ada" in tab.text()
        pictures.take("topics")
        pictures.take("dark", dark=True)
        pictures.take("narrow", NARROW)
        _redrive(gateway, tab, pictures)
        _pause(gateway, tab, pictures)
        _revoke(gateway, tab, pictures)
        assert tab.complaints == []
        tab.press("Sign out")
        tab.open(f"{address}/letters")
        assert "Sign in" in tab.text()


def _redrive(gateway: Gateway, tab: Browser, pictures: Pictures) -> None:
    before = len(dead_letters.dead_letters(gateway.owner, QUEUE))
    tab.press("Dead letters")
    tab.press(QUEUE)
    tab.fill("reason", "MAILBOX")
    tab.press("Filter")
    assert "the mailbox is full" in tab.text() and "no address" not in tab.text()
    assert "reason=MAILBOX" in tab.run("location.search")
    pictures.take("letters", (1280, 560))
    count = tab.run("document.querySelectorAll('tbody tr').length")
    tab.press("Redrive all that match")
    tab.fill("why", "the mailbox was emptied")
    pictures.take("redrive", (1280, 460))
    tab.press(f"Redrive {count}")
    assert "the mailbox was emptied (Ada)" in tab.text() and "waits for the sweep" in tab.text()
    assert sweep(gateway.owner).task_letters == count
    tab.press("Dead letters")
    tab.press("Tasks for dead letters")
    assert len(dead_letters.dead_letters(gateway.owner, QUEUE)) == before - count
    tab.press(QUEUE)
    tab.press(str(dead_letters.dead_letters(gateway.owner, QUEUE)[0].id))
    assert "customer-" in tab.text() and '"number"' not in tab.text()
    tab.press("Show the payload")
    assert NASTY in tab.text() and tab.run("document.scripts.length") == 0
    pictures.take("letter")


def _pause(gateway: Gateway, tab: Browser, pictures: Pictures) -> None:
    tab.press("Consumers")
    tab.press("billing")
    tab.fill("reason", "the bank is closed")
    tab.press("Pause")
    assert "paused" in tab.text() and "the bank is closed (Ada)" in tab.text()
    found = subscriptions.describe_subscription(gateway.owner, "billing")
    assert found.paused_reason == "the bank is closed (Ada)"
    pictures.take("subscription")
    tab.press("Resume")
    assert subscriptions.describe_subscription(gateway.owner, "billing").paused_at is None


def _revoke(gateway: Gateway, tab: Browser, pictures: Pictures) -> None:
    tab.press("Accounts")
    tab.fill("account", "tenant")
    tab.press("Make")
    tab.press("Make a key")
    key_id, secret = tab.run("[...document.querySelectorAll('.secret')].map(e => e.innerText)")
    client = Client(gateway.port, "tenant", accounts.NewKey("tenant", "", key_id, secret))
    assert client("GET", "/queues").status == 200
    tab.press("I have it")
    assert secret not in tab.text()
    pictures.take("account")
    tab.press("Revoke")
    assert "revoked" in tab.text()
    assert client("GET", "/queues").status == 401
