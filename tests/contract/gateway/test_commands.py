"""The command through a gateway: the same names, and what HTTP does not have says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests import command
from tests.command import Result
from tests.contract.gateway.kit import Client, Gateway

Run = Callable[..., Result]


@pytest.fixture
def run(shop: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command with an account of a gateway, and no database."""
    assert shop.key is not None
    for name in ("PENSTOCK_DATABASE_URL", "PENSTOCK_EMBEDDED_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PENSTOCK_GATEWAY_URL", f"http://127.0.0.1:{shop.port}/{shop.account}")
    monkeypatch.setenv("PENSTOCK_GATEWAY_KEY", f"{shop.key.key_id}.{shop.key.secret}")
    return partial(command.run, capsys)


def test_topics_from_the_first_event_to_a_committed_subscription(
    gateway: Gateway, shop: Client, run: Run
) -> None:
    assert run("topic", "create", "orders/eu", "-n", "2").err == "created topic orders/eu\n"
    assert run("topic", "list", "-o", "json").rows == [{"address": f"{shop.account}/orders/eu"}]
    for number in range(4):
        made = run(
            "publish", "orders/eu", str(number), "--partition", str(number % 2), "--header", "a=1",
            "-o", "json",
        )  # fmt: skip
        assert (made.code, made.json["duplicate"]) == (0, False)
        gateway.sequence()
    found = run("fetch", "orders/eu", "-o", "json").rows
    assert [each["payload"] for each in found] == ["0", "1", "2", "3"]
    assert found[0]["headers"] == {"a": 1}
    assert [each["payload"] for each in run("fetch", "orders/eu", "--from", "2", "--max", "1",
                                            "-o", "json").rows] == ["2"]  # fmt: skip
    tail = run("tail", "orders/eu", "--from", "1", "-o", "json").out.splitlines()
    assert [json.loads(line)["payload"] for line in tail] == ["2", "3"]
    live = run("tail", "orders/eu", "--from", "earliest", "-f", "--max", "4", "-o", "json")
    assert len(live.out.splitlines()) == 4
    assert run("subscription", "create", "billing", "-t", "orders/eu").code == 0
    assert len(run("consume", "billing", "--max", "4").out.splitlines()) == 4
    assert len(run("consume", "billing", "--commit", "--max", "3").out.splitlines()) == 3
    assert len(run("consume", "billing", "--commit", "--max", "1").out.splitlines()) == 1
    places = shop("GET", "/subscriptions/billing/positions").json()["positions"]
    assert sum(each["position"] for each in places) == 4


def test_a_queue_from_the_first_message_to_the_redriven_letter(gateway: Gateway, run: Run) -> None:
    assert run("queue", "create", "mails").err == "created queue mails\n"
    run("publish", "mails", "hello")
    with gateway.sequencing():
        (one,) = run("queue", "receive", "mails", "--wait", "20", "-o", "json").rows
    assert (one["payload"], one["deliveries"]) == ("hello", 1)
    longer = run("queue", "extend", "mails", one["receipt"], "--seconds", "60").out.strip()
    assert run("queue", "acknowledge", "mails", one["receipt"]).code == 3
    assert run("queue", "acknowledge", "mails", longer).code == 0
    (counts,) = run("queue", "statistics", "mails", "-o", "json").rows
    assert counts["size"] == 0
    assert run("dead-letter", "list", "mails", "-o", "json").rows == []
    assert run("queue", "redrive", "mails", "--all", "-o", "json").json["redriven"] == 0
    assert run("dead-letter", "redrive", "mails").code == 2


@pytest.mark.parametrize("name", ["migrate", "status", "upkeep", "namespace", "nonsense"])
def test_what_http_does_not_have_says_that_it_needs_the_database(run: Run, name: str) -> None:
    told = run(name)
    assert told.code == 2
    assert f"`penstock {name}` needs the database" in told.err
    assert "PENSTOCK_DATABASE_URL" in told.err


def test_a_gateway_that_is_named_counts_before_the_database(
    shop: Client, gateway: Gateway, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", gateway.db.url)
    url = f"http://127.0.0.1:{shop.port}/{shop.account}"
    assert run("--gateway", url, "topic", "list", "-o", "json").rows == []
    monkeypatch.setenv("PENSTOCK_GATEWAY_URL", "http://127.0.0.1:1/nobody")
    assert run("topic", "list", shop.account, "-o", "json").rows == []


def test_errors_are_one_line_without_the_key(
    shop: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = run("fetch", "missing")
    assert missing.code == 2 and len(missing.err.splitlines()) == 1
    monkeypatch.setenv("PENSTOCK_GATEWAY_KEY", "abc.secret")
    refused = run("topic", "list")
    assert refused.code != 0 and "secret" not in refused.err
    monkeypatch.setenv("PENSTOCK_GATEWAY_KEY", "")
    assert "PENSTOCK_GATEWAY_KEY" in run("topic", "list").err


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        found = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return found + [each for one in value.values() for each in references(one)]
    return [each for one in value for each in references(one)] if isinstance(value, list) else []


def test_the_asyncapi_document_has_every_topic_and_no_key(
    shop: Client, gateway: Gateway, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shop.key is not None
    for topic in ("orders/eu", "a.b~c"):
        run("topic", "create", topic)
    told = run("asyncapi", "--title", "Shop")
    found = told.json
    assert (found["asyncapi"], found["info"]["title"]) == ("3.0.0", "Shop")
    assert {each["title"] for each in found["channels"].values()} == {"orders/eu", "a.b~c"}
    for reference in references(found):
        place: Any = found
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]
    for name in (*found["channels"], *found["operations"]):
        assert name.replace("_", "").replace("-", "").isalnum(), name  # what AsyncAPI allows
    for each in found["operations"].values():
        assert each["action"] in {"send", "receive"}
    assert shop.key.secret not in told.out and shop.key.key_id not in told.out
    monkeypatch.setenv("PENSTOCK_DATABASE_URL", gateway.db.url)
    again = run("asyncapi", shop.account, "--gateway", f"http://127.0.0.1:{shop.port}",
                "--title", "Shop").json  # fmt: skip
    assert again == found
