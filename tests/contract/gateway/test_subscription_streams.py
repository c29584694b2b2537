"""A subscription over HTTP: each event is one listener's at a time, and is done when committed."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from consumers.gateway import subscriptions
from consumers.gateway.groups import ConsumerGroup
from penstock import accounts
from penstock.subscriptions import stream
from tests.consumers.process import PENSTOCK, Daemon, until
from tests.contract.gateway.kit import Client, Gateway, gateway_of
from tests.kit.log import wait_until
from tests.kit.proof import proves

STREAM = "/subscriptions/billing/stream"
COMMITS = "/subscriptions/billing/commits"


class Reader:
    """What a listener gets, one frame after the other."""

    def __init__(self, reply: http.client.HTTPResponse) -> None:
        self.reply = reply
        self.lost: list[Any] = []

    def frame(self) -> tuple[str, Any]:
        kind = "message"
        while True:
            line = self.reply.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                return kind, json.loads(line.removeprefix("data: "))

    def events(self, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            kind, told = self.frame()
            assert kind in {"message", "lost"}, (kind, told)
            (found if kind == "message" else self.lost).append(told)
        return found

    def end(self) -> int:
        while True:
            kind, told = self.frame()
            if kind == "end":
                return int(told)


@contextmanager
def listening(client: Client, query: str = "", port: int | None = None) -> Iterator[Reader]:
    assert client.key is not None
    connection = http.client.HTTPConnection("127.0.0.1", port or client.port, timeout=20)
    told = {"Authorization": f"Key {client.key.key_id}.{client.key.secret}"}
    connection.request("GET", f"/api/v1/accounts/{client.account}{STREAM}{query}", b"", told)
    reply = connection.getresponse()
    try:
        assert reply.status == 200, reply.read()
        yield Reader(reply)
    finally:
        reply.close()
        connection.close()


def place(event: Any) -> dict[str, Any]:
    return {name: event[name] for name in PLACE}


PLACE = ("topic", "partition", "lease_epoch", "sequence", "history")


def commit(client: Client, *events: Any) -> int:
    """Commit the last of these of each partition."""
    last = {(each["topic"], each["partition"]): place(each) for each in events}
    body = {"consumer": events[0]["consumer"], "positions": list(last.values())}
    return client("POST", COMMITS, body).status


def publish(client: Client, first: int, count: int, key: str | None = None) -> None:
    given = [{"text": str(first + n), "key": key or str(n)} for n in range(count)]
    assert client("POST", "/topics/orders/batches", {"events": given}).status == 201


def numbers(events: list[Any]) -> list[int]:
    return sorted(int(each["event"]["data"]) for each in events)


@pytest.fixture
def billing(gateway: Gateway, shop: Client) -> Client:
    """The account with a topic of two partitions and a subscription with short leases."""
    assert shop("POST", "/topics", {"topic": "orders", "partitions": 2}).status == 201
    made = shop("POST", "/subscriptions", {"subscription": "billing", "topics": ["orders"]})
    assert (made.status, made.json()) == (201, {"added": 1})
    stream.configure_subscription(
        gateway.owner,
        f"{shop.account}/billing",
        heartbeat_seconds=0.2,
        lease_seconds=1.0,
        release_seconds=1.0,
    )
    return shop


def held(client: Client) -> dict[int, str | None]:
    found = client("GET", "/subscriptions/billing/positions").json()["positions"]
    return {each["partition"]: each["consumer"] for each in found}


def done(client: Client) -> int:
    found = client("GET", "/subscriptions/billing/positions").json()["positions"]
    return sum(each["position"] for each in found)


@proves("a subscription over HTTP")
def test_what_is_committed_comes_never_again_and_all_else_does(
    gateway: Gateway, billing: Client
) -> None:
    publish(billing, 0, 10)
    with gateway.sequencing(), listening(billing) as reader:
        found = reader.events(10)
        assert numbers(found) == [*range(10)]
        assert commit(billing, *found[:4]) == 204
        assert commit(billing, *found[:4]) == 204  # the answer may have been lost
        of_one = [each for each in found[:4] if each["partition"] == found[3]["partition"]]
        assert len(of_one) == 1 or commit(billing, of_one[0]) == 409  # backward
        publish(billing, 10, 5)
        rest = found[4:] + reader.events(5)
    with gateway.sequencing(), listening(billing) as again:
        repeated = again.events(len(rest))
        assert numbers(repeated) == numbers(rest)
        assert {each["lease_epoch"] for each in repeated} == {2}
        assert commit(billing, *rest) == 409  # under the leases of before
        assert commit(billing, *repeated) == 204
    assert done(billing) == 15


@proves("a subscription over HTTP")
def test_two_listeners_share_the_partitions(gateway: Gateway, billing: Client) -> None:
    with gateway.sequencing(), listening(billing) as one, listening(billing) as other:
        publish(billing, 0, 40)
        wait_until(lambda: len({*held(billing).values()} - {None}) == 2, "each holds one")
        publish(billing, 40, 40)
        found: dict[int, list[int]] = {}
        for reader in (one, other):
            while True:
                (event,) = reader.events(1)
                found.setdefault(event["partition"], []).append(event["sequence"])
                assert commit(billing, event) in {204, 409}
                if event["sequence"] >= 30:
                    break
        for sequences in found.values():
            assert sorted({*sequences}) == [*range(1, max(sequences) + 1)]


@proves("a subscription over HTTP")
def test_who_commits_nothing_loses_what_it_holds(gateway: Gateway, billing: Client) -> None:
    publish(billing, 0, 3, key="a")
    with gateway.sequencing(), listening(billing, "?commit_seconds=0.5") as hung:
        before = hung.events(3)
        with listening(billing) as other:
            after = other.events(3)
            assert numbers(after) == numbers(before)
            assert after[0]["lease_epoch"] > before[0]["lease_epoch"]
            assert hung.end() == 408
            assert commit(billing, *before) == 409
            assert commit(billing, *after) == 204


@proves("a subscription over HTTP")
def test_so_many_lack_a_commit_and_no_more_and_another_process_may_commit(
    gateway: Gateway, billing: Client
) -> None:
    publish(billing, 0, 9, key="a")
    gateway.sequence()
    with gateway_of(gateway.db) as second, listening(billing, "?max_uncommitted=4") as reader:
        elsewhere = Client(second.port, billing.account, billing.key)
        for some in (4, 4, 1):
            found = reader.events(some)
            lags = billing("GET", "/subscriptions/billing/positions").json()["positions"]
            assert max(each["lag_events"] for each in lags) >= len(found)
            assert commit(elsewhere, *found) == 204
        assert done(billing) == 9


@proves("a subscription over HTTP")
def test_a_seek_takes_the_lease_and_the_listener_is_told(gateway: Gateway, billing: Client) -> None:
    publish(billing, 0, 3, key="a")
    gateway.sequence()
    with listening(billing) as reader:
        before = reader.events(3)
        name, number = f"{billing.account}/billing", before[0]["partition"]
        stream.seek(gateway.owner, name, f"{billing.account}/orders", number, "earliest")
        after = reader.events(3)
        assert [each["lease_epoch"] for each in reader.lost] == [before[0]["lease_epoch"]]
        assert numbers(after) == numbers(before)
        assert commit(billing, before[-1]) == 409
        assert commit(billing, after[-1]) == 204


@proves("a subscription over HTTP", guard="the lease_epoch of the event")
def test_without_the_epoch_of_the_event_an_old_commit_is_taken(
    gateway: Gateway, billing: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_by = subscriptions._held
    monkeypatch.setattr(
        "consumers.gateway.subscriptions._held",
        lambda held, root, one: (
            held[root + one.topic, one.partition],
            held_by(held, root, one)[1],
        ),
    )
    publish(billing, 0, 3, key="a")
    gateway.sequence()
    with listening(billing) as reader:
        before = reader.events(3)
        name, number = f"{billing.account}/billing", before[0]["partition"]
        stream.seek(gateway.owner, name, f"{billing.account}/orders", number, "earliest")
        reader.events(3)
        assert commit(billing, before[-1]) == 204


@proves("a subscription over HTTP")
def test_a_killed_process_is_replaced_when_its_leases_end(
    gateway: Gateway, billing: Client, tmp_path: Path
) -> None:
    publish(billing, 0, 3, key="a")
    environment = {
        "PENSTOCK_GATEWAY_DATABASE_URL": gateway.tenants.url_of(gateway.login),
        "PENSTOCK_MASTER_KEYS": "m" * 40,
    }
    arguments = ("gateway", "--port", "0")
    killed = Daemon(gateway.db.url, tmp_path / "log", arguments, environment, program=PENSTOCK)
    try:
        killed.wait_started()
        port = until(
            lambda: [e["port"] for e in killed.events() if e["event"] == "gateway listens"], "it"
        )[0]
        with gateway.sequencing(), listening(billing, port=port) as lost:
            before = lost.events(3)
            assert commit(billing, before[0]) == 204
            with listening(billing) as other:
                killed.kill()
                after = other.events(2)
            assert numbers(after) == [1, 2]
            assert commit(billing, before[2]) == 409
    finally:
        killed.kill()


def test_a_stream_ends_with_its_key_and_with_its_subscription(
    gateway: Gateway, billing: Client
) -> None:
    assert billing.key is not None
    other = gateway.client(billing.account)
    with listening(billing) as reader, listening(other) as stays:
        accounts.revoke_key(gateway.owner, billing.account, billing.key.key_id)
        assert reader.end() == 401
        assert other("DELETE", "/subscriptions/billing").status == 204
        assert stays.end() == 404


def test_idle_listeners_do_not_check_in(
    gateway: Gateway, billing: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_ins_of_idle(billing, monkeypatch) == 0


def test_without_the_look_each_of_them_does(
    gateway: Gateway, billing: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConsumerGroup, "is_quiet", lambda _: False)
    assert check_ins_of_idle(billing, monkeypatch) >= 3


def check_ins_of_idle(client: Client, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many check-ins three idle listeners make while their group beats four times."""
    beats: list[int] = []
    made: list[str] = []
    heartbeats, check_in = stream.heartbeats, stream.check_in

    def counted(connection: Any, members: Any) -> Any:
        beats.append(len(members))
        return heartbeats(connection, members)

    def noted(connection: Any, member: Any, *, fresh: bool = True) -> Any:
        made.append(member.consumer)
        return check_in(connection, member, fresh=fresh)

    with listening(client), listening(client), listening(client):
        monkeypatch.setattr(stream, "check_in", noted)
        monkeypatch.setattr(stream, "heartbeats", counted)
        wait_until(lambda: beats.count(3) >= 4, "four beats, each of all three")
        return len(made)


def test_what_is_refused(gateway: Gateway, billing: Client, bank: Client) -> None:
    assert billing("POST", "/queues", {"queueName": "mails"}).status == 201
    wrong = {"subscription": "mails", "topics": ["orders"]}
    assert billing("POST", "/subscriptions", wrong).status == 409
    for method, path in [
        ("GET", "/subscriptions/mails/stream"),
        ("GET", "/subscriptions/mails/positions"),
        ("DELETE", "/subscriptions/mails"),
    ]:
        assert billing(method, path).status == 409, (method, path)
    assert billing("GET", "/queues/mails").status == 200
    with listening(billing, "?consumer=me"):
        assert billing("GET", f"{STREAM}?consumer=me").status == 409
    (found,) = billing("GET", "/subscriptions").json()["subscriptions"]
    assert (found["subscription"], found["topics"]) == ("billing", ["orders"])
    assert bank("GET", "/subscriptions").json() == {"subscriptions": []}
    assert bank("GET", STREAM).status == 404
