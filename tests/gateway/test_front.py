"""What the gateway does before it knows who calls: the same on every engine."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from consumers.gateway.answers import as_refused
from consumers.gateway.front import origin_of
from penstock.errors import ActsForNobody
from tests.contract.databases import PostgresDatabase
from tests.contract.gateway.kit import Client, Gateway, Reply, gateway_of
from tests.kit.log import wait_until
from tests.support import PostgresServer

MOST = 4_096
SAFE = {"X-Forwarded-Proto": "https"}


@pytest.fixture(scope="module")
def front(postgres_server: PostgresServer, migrated_template: str) -> Iterator[Gateway]:
    """A gateway behind a proxy, with every limit small."""
    name = f"{migrated_template}_front"
    db = PostgresDatabase("postgres", postgres_server.create(name, migrated_template))
    limits = {"failures_a_minute": 3, "max_body_bytes": MOST, "bodies_bytes": 3 * MOST}
    names = {"trusted_proxies": "127.0.0.1", "hosts": "gateway.example,127.0.0.1"}
    with gateway_of(db, cors_origins="https://shop.example", **limits, **names) as made:
        yield made
    db.close()
    postgres_server.drop(name)


@pytest.fixture(scope="module")
def shop(front: Gateway) -> Client:
    """An account with a queue."""
    made = front.client("shop")
    assert made("POST", "/queues", {"queueName": "orders"}, headers=SAFE).status == 201
    return made


def from_address(client: Client, address: str, key: str = "") -> Reply:
    headers = SAFE | {"X-Forwarded-For": address}
    return client("GET", "/queues", headers=headers | ({"Authorization": key} if key else {}))


def statuses(client: Client, address: str, count: int) -> list[int]:
    return [from_address(client, address, "Key a.b").status for _ in range(count)]


def test_too_many_failures_are_429_and_keys_in_use_go_on(front: Gateway, shop: Client) -> None:
    assert statuses(shop, "192.0.2.1", 4) == [401, 401, 401, 429]
    unknown = from_address(shop, "192.0.2.1", "Key " + "0" * 24 + "." + "s" * 43)
    assert (unknown.status, 1 <= int(unknown.headers["retry-after"]) <= 60) == (429, True)
    assert from_address(shop, "192.0.2.2").status == 200
    # One that is in use is good from the address of others that fail, too.
    assert from_address(shop, "192.0.2.1").status == 200
    assert from_address(front.client("new"), "192.0.2.1").status == 429


def test_all_addresses_of_a_network_of_ipv6_count_as_one(shop: Client) -> None:
    found = [statuses(shop, f"2001:db8::{number}", 1) for number in range(4)]
    assert found == [[401], [401], [401], [429]]
    assert statuses(shop, "2001:db8:0:1::", 1) == [401]


def test_a_key_is_taken_on_loopback_or_over_tls_only(shop: Client) -> None:
    far = {"X-Forwarded-For": "192.0.2.3"}
    assert shop("GET", "/queues", headers=far | {"X-Forwarded-Proto": "http"}).status == 401
    assert shop("GET", "/queues", headers=far | SAFE).status == 200


@pytest.mark.parametrize(
    ("headers", "is_safe"),
    [
        ({}, True),
        ({"x-forwarded-for": "192.0.2.1"}, False),
        ({"x-forwarded-proto": "https"}, False),
        ({"x-forwarded-host": "a"}, False),
        ({"forwarded": "for=192.0.2.1;proto=https"}, False),
        ({"x-real-ip": "192.0.2.1"}, False),
        ({"via": "1.1 proxy"}, False),
    ],
)
def test_what_an_unlisted_proxy_passes_on_is_not_from_this_machine(
    headers: dict[str, str], is_safe: bool
) -> None:
    """It may have come without TLS.  Guard: _PASSED_ON."""
    scope = {"client": ("127.0.0.1", 1), "scheme": "http"}
    assert origin_of(scope, headers, frozenset()).is_safe is is_safe


def test_the_gateway_s_own_login_is_told_to_nobody() -> None:
    told = as_refused(ActsForNobody('login "gw" acts for no account in this transaction'))
    assert told is not None
    assert (told.status, "gw" in told.message) == (503, False)


def test_a_gateway_answers_by_its_names_only(shop: Client) -> None:
    assert shop("GET", "/queues", headers=SAFE | {"Host": "other.example"}).status == 421
    assert shop("GET", "/queues", headers=SAFE | {"Host": "gateway.example"}).status == 200


def test_pages_of_listed_origins_may_call_and_no_others(shop: Client) -> None:
    page = {"Origin": "https://shop.example"}
    mine = shop("GET", "/queues", headers=SAFE | page)
    assert mine.headers["access-control-allow-origin"] == "https://shop.example"
    asked = shop("OPTIONS", "/queues", headers=page)
    assert (asked.status, asked.body) == (204, b"")
    other = shop("GET", "/queues", headers=SAFE | {"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers


def test_a_long_body_is_refused_before_it_is_read(shop: Client) -> None:
    put = "/queues/orders/messages"
    assert shop("POST", put, b"x" * MOST, headers=SAFE).status == 201
    # Before the credentials are looked at.
    assert replace(shop, key=None)("POST", put, b"x" * (MOST + 1)).status == 413
    chunked = SAFE | {"Transfer-Encoding": "chunked"}
    body = b"%x\r\n" % (MOST + 1) + b"x" * (MOST + 1) + b"\r\n0\r\n\r\n"
    assert shop("POST", put, body, headers=chunked).status == 413


def begun(shop: Client, key: str) -> socket.socket:
    """A request whose body has come but for its last byte."""
    made = socket.create_connection(("127.0.0.1", shop.port), timeout=10)
    head = (
        f"POST /api/v1/accounts/shop/queues/orders/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Key {key}\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 192.0.2.9\r\n"
        f"Content-Length: {MOST}\r\n\r\n"
    )
    made.sendall(head.encode() + b"x" * (MOST - 1))
    return made


def test_nobody_is_known_by_a_body(shop: Client) -> None:
    """The answer comes while the body does: it is not kept."""
    with closing(begun(shop, "a.b")) as made:
        assert made.recv(12) == b"HTTP/1.1 401"


def test_all_bodies_together_have_a_limit(front: Gateway, shop: Client) -> None:
    assert shop.key is not None
    key = f"{shop.key.key_id}.{shop.key.secret}"
    slow = [begun(shop, key) for _ in range(3)]
    try:
        wait_until(lambda: front.worker.gauges()["gateway_present"] == 3, "three wait")
        refused = shop("POST", "/queues/orders/messages", b"x" * 100, headers=SAFE)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    finally:
        for each in slow:
            each.close()
    wait_until(lambda: not front.worker.gauges()["gateway_present"], "they are gone")
    assert shop("POST", "/queues/orders/messages", b"x" * 100, headers=SAFE).status == 201


def test_it_speaks_tls_by_files(database_url: str, tmp_path: Path) -> None:
    certificate, key = certified(tmp_path)
    db = PostgresDatabase("postgres", database_url)
    with gateway_of(db, tls_certificate=str(certificate), tls_key=str(key)) as gateway:
        shop = gateway.client("shop")
        assert shop.key is not None
        told = {"Authorization": f"Key {shop.key.key_id}.{shop.key.secret}"}
        trust = ssl.create_default_context(cafile=str(certificate))
        opened = http.client.HTTPSConnection("localhost", gateway.port, context=trust)
        with closing(opened) as connection:
            connection.request("GET", "/api/v1/accounts/shop/queues", headers=told)
            assert connection.getresponse().status == 200


def certified(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself, and its key."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(pem))
    key.write_bytes(private.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return certificate, key
