"""What no client sends, on a socket: nothing is lost or comes twice, and others are served."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.contract.databases import PostgresDatabase
from tests.contract.gateway.kit import Client, Gateway, gateway_of
from tests.kit.log import wait_until
from tests.kit.proof import proves
from tests.support import PostgresServer

PUT = "/queues/orders/messages"
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def raw(postgres_server: PostgresServer, migrated_template: str) -> Iterator[Gateway]:
    """A gateway whose limits of time are short."""
    name = f"{migrated_template}_raw"
    db = PostgresDatabase("postgres", postgres_server.create(name, migrated_template))
    with gateway_of(db, request_seconds=1.0) as made:
        yield made
    db.close()
    postgres_server.drop(name)


@pytest.fixture(scope="module")
def shop(raw: Gateway) -> Client:
    """An account with a queue."""
    made = raw.client("shop")
    assert made("POST", "/queues", {"queueName": "orders"}).status == 201
    return made


def head(client: Client, *more: str, path: str = PUT) -> bytes:
    """The head of a publish, with its key."""
    assert client.key is not None
    lines = (
        f"POST /api/v1/accounts/{client.account}{path} HTTP/1.1",
        "Host: a",
        f"Authorization: Key {client.key.key_id}.{client.key.secret}",
        *more,
    )
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def statuses(port: int, data: bytes) -> list[int]:
    """Of all answers that come until the server closes, or rests for a moment."""
    got = b""
    made = socket.create_connection(("127.0.0.1", port), timeout=5)
    with closing(made), suppress(OSError):
        made.sendall(data)
        made.settimeout(0.5)
        while part := made.recv(65_536):
            got += part
    return [int(each[:3]) for each in got.split(b"HTTP/1.1 ")[1:]]


def count(raw: Gateway, client: Client) -> int:
    """How many messages the queue has."""
    raw.sequence()
    return int(client("GET", "/queues/orders/statistics").json()["size"])


def hidden(client: Client) -> bytes:
    """A publish that is hidden in a body: it is taken where two lengths are understood twice."""
    return b"0\r\n\r\n" + head(client, "Content-Length: 1") + b"x"


LENGTHS = [
    ("Content-Length: {n}", "Transfer-Encoding: chunked"),
    ("Transfer-Encoding: chunked", "Content-Length: {n}"),
    ("Content-Length: {n}", "Content-Length: 5"),
    ("Content-Length: {n}, {n}",),
    ("Content-Length: +{n}",),
    ("Content-Length: -1",),
    ("Content-Length: 0x10",),
    ("Content-Length: {n}", "Transfer-Encoding : chunked"),
    ("Content-Length : 5",),
    ("Transfer-Encoding: xchunked",),
    ("Transfer-Encoding: chunked, identity",),
    ("Transfer-Encoding: identity, chunked", "Content-Length: 5"),
    ("Transfer-Encoding:\x0bchunked", "Content-Length: 5"),
    ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    ("X: a\r\n Content-Length: 5",),
    ("X: a\r\n\tTransfer-Encoding: chunked",),
    ("X: a\nContent-Length: 5",),
    ("X: a\rContent-Length: 5",),
    ("X: a\x00b", "Content-Length: 5"),
    (" X: a", "Content-Length: 5"),
]


@proves("no request in another")
@pytest.mark.parametrize("lengths", LENGTHS)
def test_no_request_is_smuggled_in_the_body_of_another(
    raw: Gateway, shop: Client, lengths: tuple[str, ...]
) -> None:
    """One answer at most is a success, and what the queue has is what was answered."""
    before, inner = count(raw, shop), hidden(shop)
    told = [each.replace("{n}", str(len(inner))) for each in lengths]
    found = statuses(raw.port, head(shop, *told) + inner)
    assert count(raw, shop) - before == found.count(201) <= 1
    assert found[:1] == [400] or len(found) == 1, found


def test_a_fold_of_a_header_ends_the_connection(raw: Gateway, shop: Client) -> None:
    """A proxy may read it as one header, or as two."""
    assert statuses(raw.port, head(shop, "X: a", " b: c", "Content-Length: 1") + b"x") == [400]


def resident() -> int:
    """Bytes of this process, in which the gateway runs, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(each.split()[1]) * 1_024 for each in lines if each.startswith("VmRSS"))


@proves("no request in another")
@pytest.mark.parametrize("field", [b"X: ", b"Cookie: a\r\nX"])
def test_a_header_of_60_megabytes_takes_no_memory(raw: Gateway, shop: Client, field: bytes) -> None:
    before, part = resident(), b"x" * MEGABYTE
    with closing(socket.create_connection(("127.0.0.1", raw.port), timeout=5)) as made:
        made.sendall(b"POST / HTTP/1.1\r\nHost: a\r\n" + field)
        with suppress(OSError):
            for _ in range(60):
                made.sendall(part)
    assert resident() - before < 16 * MEGABYTE
    assert shop("GET", "/queues").status == 200


def mutated(client: Client, random_: random.Random) -> bytes:
    """A publish with a few bytes that are lost, doubled or changed."""
    data = bytearray(head(client, "Content-Length: 5") + b"hello")
    for _ in range(random_.randint(1, 4)):
        place = random_.randrange(len(data))
        match random_.randrange(4):
            case 0:
                del data[place : place + random_.randint(1, 8)]
            case 1:
                data[place:place] = data[place : place + random_.randint(1, 40)]
            case 2:
                data[place] = random_.randrange(256)
            case _:
                data[place:place] = random_.choice([b"\r\n", b"\n", b"\r", b" ", b":", b"\0"])
    return bytes(data)


@proves("no request in another")
@pytest.mark.parametrize("times", [20, pytest.param(2_000, marks=pytest.mark.long)])
def test_torn_and_broken_requests_lose_nothing_of_others(
    raw: Gateway, shop: Client, times: int
) -> None:
    """Each is answered at most once, never by 5xx; publishes beside them are all there."""
    random_, before, stop, good = random.Random(times), count(raw, shop), Event(), []

    def publish() -> None:
        while not stop.is_set():
            good.append(shop("POST", PUT, b"good").status)

    beside = Thread(target=publish)
    beside.start()
    made = 0
    try:
        for _ in range(times):
            data = mutated(shop, random_)
            with closing(socket.create_connection(("127.0.0.1", raw.port), timeout=5)) as torn:
                cut = random_.choice([len(data), random_.randrange(len(data))])
                with suppress(OSError):
                    torn.sendall(data[:cut])
                    torn.shutdown(socket.SHUT_WR)
                    found = torn.recv(65_536)
                    assert not found.startswith(b"HTTP/1.1 5"), data
                    made += found.startswith(b"HTTP/1.1 201")
    finally:
        stop.set()
        beside.join()
    assert set(good) == {201}
    # Whose sender was gone before the answer may be there, or not.
    wait_until(lambda: not raw.worker.gauges()["gateway_present"], "all are answered")
    assert len(good) + made <= count(raw, shop) - before <= len(good) + times
