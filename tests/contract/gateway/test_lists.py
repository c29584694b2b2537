"""Lists of an account page by page: topics, queues, subscriptions."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest

import penstock
from penstock.subscriptions import list_subscriptions, queue, stream
from tests.contract.gateway.kit import Client, Gateway

#: Where the order of bytes is not that of a dictionary, and one that is hidden in another's name.
NAMES = ("B", "a", "a-b", "a.b", "a0", "b", "\u00fc")


@pytest.fixture
def filled(gateway: Gateway, shop: Client, bank: Client) -> Client:
    """An account with a topic, a queue and a stream of each name, between others."""
    for account, names in ((shop.account, NAMES), (bank.account, ("a", "z"))):
        for name in names:
            address = f"{account}/{name}"
            penstock.create_topic(gateway.owner, address)
            queue.subscribe(gateway.owner, address, [address])
            stream.subscribe(gateway.owner, f"{account}/s{name}", [address])
    penstock.create_topic(gateway.owner, f"{shop.account}/a/deep", create_namespaces=True)
    return shop


def paged(client: Client, path: str, name: str) -> list[list[str]]:
    """The names of each page of two, as `next` goes on."""
    pages, after = [], ""
    while True:
        told = client("GET", f"{path}?max_rows=2{after}").json()
        pages.append([each[name].removeprefix(f"{client.account}/") for each in told[path[1:]]])
        if "next" not in told:
            return pages
        after = f"&after={quote(told['next'])}"


def test_topics_and_subscriptions_come_page_by_page(filled: Client) -> None:
    """In the order of their bytes, each once, and none of another account."""
    topics = paged(filled, "/topics", "address")
    assert topics == [["B", "a"], ["a-b", "a.b"], ["a/deep", "a0"], ["b", "\u00fc"]]
    found = paged(filled, "/subscriptions", "subscription")
    assert found == [["sB", "sa"], ["sa-b", "sa.b"], ["sa0", "sb"], ["s\u00fc"]]


def test_queues_come_page_by_page(filled: Client) -> None:
    """The header Link says where to go on."""
    pages, path = [], "/queues?max_rows=3"
    while path:
        reply = filled("GET", path)
        pages.append([each["queueName"] for each in reply.json()])
        link = re.fullmatch(r'<.*(/queues\?.*)>; rel="next"', reply.headers.get("link", ""))
        path = link[1] if link else ""
    assert pages == [["B", "a", "a-b"], ["a.b", "a0", "b"], ["\u00fc"]]
    assert len(filled("GET", "/queues").json()) == len(NAMES)
    assert filled("GET", "/queues?max_rows=1001").status == 400


def test_a_page_reads_only_what_comes_after_it(gateway: Gateway, filled: Client) -> None:
    """The same calls, by any login: names below a namespace, of a kind, after one."""
    own, root = gateway.owner, filled.account

    def topics(**more: Any) -> list[str]:
        return [each.address for each in penstock.list_topics(own, **more)]

    assert topics(namespace=root, after=f"{root}/a0") == [f"{root}/b", f"{root}/\u00fc"]
    assert topics(namespace=f"{root}/a") == [f"{root}/a/deep"]
    assert topics(namespace=root, after="zzzz", max_rows=5) == []
    assert topics(after=f"{root}/a", max_rows=1) == [f"{root}/a-b"]
    found = list_subscriptions(own, root, mode="queue", after=f"{root}/b")
    assert [each.name for each in found] == [f"{root}/\u00fc"]
    assert len(list_subscriptions(own, root)) == 2 * len(NAMES)
    assert list_subscriptions(own, f"{root}/a") == []
    shorter = list_subscriptions(own, root[:-1])
    assert [each.name for each in shorter if each.name.startswith(f"{root}/")] == []


def test_names_that_are_longer_than_the_index_are_in_order(gateway: Gateway, shop: Client) -> None:
    """An index holds 600 characters of an address."""
    names = [f"{'n' * 300}/{'m' * 300}/{'k' * 300}{end}" for end in ("", "b", "c", "\u00fc")]
    for name in reversed(names):
        penstock.create_topic(gateway.owner, f"{shop.account}/{name}", create_namespaces=True)
    found = paged(shop, "/topics", "address")
    assert [each for page in found for each in page] == names
