"""Who may call what: three kinds of credentials, levels, queues, times, and other accounts."""

from __future__ import annotations

import http.client
import ssl
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock import accounts
from tests.contract.databases import ContractDatabase
from tests.contract.gateway.kit import Client, Gateway, gateway_of

PATH = "/queues/orders"


def made(shop: Client) -> Client:
    assert shop("POST", "/queues", {"queueName": "orders"}).status == 201
    return shop


def test_a_signed_request_counts_once(shop: Client) -> None:
    made(shop)
    bare = replace(shop, key=None)
    headers = shop.sign("GET", PATH)
    assert bare("GET", PATH, headers=headers).status == 200
    assert bare("GET", PATH, headers=headers).status == 401
    body = b'{"queueName": "others"}'
    assert bare("POST", "/queues", body, headers=shop.sign("POST", "/queues", body)).status == 201
    assert (
        bare("POST", "/queues", body + b" ", headers=shop.sign("POST", "/queues", body)).status
        == 401
    )


def test_a_signed_address_gives_its_levels_in_its_time_for_its_queue(shop: Client) -> None:
    made(shop)("POST", "/queues", {"queueName": "others"})
    reader = shop.by_address("g", queue="orders")
    assert reader("GET", PATH).status == 200
    assert reader("DELETE", PATH).status == 403
    assert reader("GET", "/queues/others").status == 401
    assert reader("GET", "/queues").status == 401
    assert shop.by_address("g")("GET", "/queues").status == 200
    assert shop.by_address("g", reads_only=True)("GET", PATH).status == 200
    assert shop.by_address("c", reads_only=True)("POST", "/queues", {}).status == 401
    late = datetime.now(UTC) + timedelta(hours=1)
    assert (
        shop.by_address("g", start=late, end=late + timedelta(hours=1))("GET", PATH).status == 401
    )
    past = datetime.now(UTC) - timedelta(hours=2)
    assert (
        shop.by_address("g", start=past, end=past + timedelta(hours=1))("GET", PATH).status == 401
    )


def test_a_revoked_key_ends_its_addresses_and_itself_at_once(
    gateway: Gateway, shop: Client
) -> None:
    reader = made(shop).by_address("g")
    assert shop.key is not None
    assert reader("GET", PATH).status == 200
    # Well within the time for which the process believes what it has read of a key.
    accounts.revoke_key(gateway.owner, "shop", shop.key.key_id)
    assert reader("GET", PATH).status == 401
    assert shop("GET", PATH).status == 401


def test_a_key_has_levels_and_may_have_a_queue(gateway: Gateway, shop: Client) -> None:
    made(shop)
    limited = gateway.client("shop", levels="rp", queue="orders")
    assert limited("POST", f"{PATH}/messages", b"x").status == 201
    assert limited("GET", PATH).status == 403
    assert limited("DELETE", PATH).status == 403
    assert limited("POST", "/queues/others/messages", b"x").status == 401
    # An address can give no more than its key has.
    assert limited.by_address("gd")("GET", PATH).status == 403


@pytest.mark.parametrize(
    "authorization",
    ["Key x", "Key a.b", "Key", "Bearer x", "Basic eDp5", "Key " + "0" * 24 + "." + "s" * 43],
)
def test_wrong_credentials_are_401_without_a_body(shop: Client, authorization: str) -> None:
    reply = shop("GET", PATH, headers={"Authorization": authorization})
    assert (reply.status, reply.body) == (401, b"")


def test_an_account_sees_nothing_of_another(gateway: Gateway, shop: Client) -> None:
    made(shop)("POST", f"{PATH}/messages", b"secret")
    gateway.sequence()
    bank = gateway.client("bank")
    assert bank("GET", PATH, account="shop").status == 401
    assert bank("GET", PATH, account="nobody").status == 401
    assert replace(bank, key=None)("GET", PATH).status == 401
    assert bank("GET", "/queues").json() == []
    foreign, missing = (bank("GET", f"/topics/{name}/partitions") for name in ("orders", "none"))
    assert foreign.status == missing.status == 404
    assert foreign.body.replace(b"orders", b"none") == missing.body


def test_too_many_failures_are_429_and_good_calls_of_others_go_on(db: ContractDatabase) -> None:
    with gateway_of(db, failures_a_minute=3, trusted_proxies="127.0.0.1") as gateway:
        shop = gateway.client("shop")

        def call(address: str, key: str | None = None) -> int:
            headers = {"X-Forwarded-For": address, "X-Forwarded-Proto": "https"}
            wrong = {"Authorization": key} if key else {}
            return shop("GET", "/queues", headers=headers | wrong).status

        assert [call("192.0.2.1", "Key a.b") for _ in range(4)] == [401, 401, 401, 429]
        assert call("192.0.2.1") == 429
        assert call("192.0.2.2") == 200


def test_a_key_is_taken_on_loopback_or_over_tls_only(db: ContractDatabase) -> None:
    with gateway_of(db, trusted_proxies="127.0.0.1") as gateway:
        shop = gateway.client("shop")
        far = {"X-Forwarded-For": "192.0.2.1"}
        assert shop("GET", "/queues", headers=far | {"X-Forwarded-Proto": "http"}).status == 401
        assert shop("GET", "/queues", headers=far | {"X-Forwarded-Proto": "https"}).status == 200


def test_a_gateway_answers_by_its_names_only(db: ContractDatabase) -> None:
    with gateway_of(db, hosts="gateway.example") as gateway:
        shop = gateway.client("shop")
        assert shop("GET", "/queues").status == 421
        assert shop("GET", "/queues", headers={"Host": "gateway.example"}).status == 200


def test_pages_of_listed_origins_may_call_and_no_others(db: ContractDatabase) -> None:
    with gateway_of(db, cors_origins="https://shop.example") as gateway:
        shop = gateway.client("shop")
        mine = shop("GET", "/queues", headers={"Origin": "https://shop.example"})
        assert mine.headers["access-control-allow-origin"] == "https://shop.example"
        asked = shop("OPTIONS", "/queues", headers={"Origin": "https://shop.example"})
        assert (asked.status, asked.body) == (204, b"")
        other = shop("GET", "/queues", headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers


def test_a_long_body_is_refused_before_it_is_read(db: ContractDatabase) -> None:
    with gateway_of(db, max_body_bytes=1_024) as gateway:
        shop = made(gateway.client("shop"))
        assert shop("POST", f"{PATH}/messages", b"x" * 1_024).status == 201
        # Before the credentials are looked at.
        assert replace(shop, key=None)("POST", f"{PATH}/messages", b"x" * 1_025).status == 413


def test_it_speaks_tls_by_files(db: ContractDatabase, tmp_path: Path) -> None:
    certificate, key = certified(tmp_path)
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
