"""Signatures of requests and addresses: good ones are taken, and no changed one is.

The long form changes ten thousand of each kind.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import string
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from consumers.gateway.credentials import nonces, signed_requests, signed_urls, sigv4
from consumers.gateway.credentials.shown import BadCredentials, ShownRequest
from tests.kit.proof import proves

NOW = datetime(2026, 11, 26, 20, 0, 0, tzinfo=UTC)
CLOCK = NOW.timestamp()
HOST = "gateway.example:8080"
SECRET = "s" * 43
KEY = "0123456789abcdef01234567"
often = pytest.mark.parametrize("count", [100, pytest.param(2_000, marks=pytest.mark.long)])


def text(random_: random.Random, longest: int = 20) -> str:
    return "".join(
        random_.choices(string.ascii_letters + string.digits, k=1 + random_.randrange(longest))
    )


def anything(random_: random.Random) -> ShownRequest:
    """A request with any path, query and body."""
    path = "/" + "/".join(text(random_) for _ in range(random_.randrange(1, 5)))
    query = "&".join(f"{text(random_)}={text(random_)}" for _ in range(random_.randrange(4)))
    method = random_.choice(["GET", "POST", "PUT", "DELETE"])
    return ShownRequest(
        method, path, query, {"host": HOST}, random_.randbytes(random_.randrange(50))
    )


def changed(random_: random.Random, given: str) -> str:
    """The text with one letter or digit replaced."""
    places = [place for place, each in enumerate(given) if each.isalnum()]
    if not places:
        return given + "x"
    place = random_.choice(places)
    # In another case, an escaped letter would be the same one.
    others = [each for each in "0123456789abcdefXYZ" if each.lower() != given[place].lower()]
    return given[:place] + random_.choice(others) + given[place + 1 :]


def differing(random_: random.Random, shown: ShownRequest, headers: list[str]) -> ShownRequest:
    """The request with one thing about it changed."""
    what = random_.choice(["path", "query", "body", "method", *headers])
    if what == "body":
        return replace(shown, body=shown.body + b"x")
    if what == "method":
        return replace(shown, method="PATCH")
    if what in headers:
        value = changed(random_, shown.headers[what])
        return replace(shown, headers={**shown.headers, what: value})
    if what == "path":
        return replace(shown, path=changed(random_, shown.path))
    return replace(shown, query=changed(random_, shown.query))


def is_taken(read: Callable[[], Any], secret: str = SECRET) -> bool:
    """Whether a request is that of the key, whose secret the gateway would find by its id."""
    try:
        found = read()
    except BadCredentials:
        return False
    return found.key_id == KEY and bool(found.is_by(secret))


def signed_request(shown: ShownRequest, **more: object) -> ShownRequest:
    given = {"created": int(CLOCK), "nonce": "n" * 16} | more
    headers = signed_requests.sign(shown, HOST, KEY, SECRET, **given)  # type: ignore[arg-type]
    small = {name.lower(): value for name, value in headers.items()}
    return replace(shown, headers={**shown.headers, **small})


def takes_request(shown: ShownRequest, now: float = CLOCK, secret: str = SECRET) -> bool:
    def read() -> Any:
        found = signed_requests.read(shown, HOST, now)
        if not found.is_over(shown.body):
            raise BadCredentials
        return found

    return is_taken(read, secret)


@proves("a signature counts")
@often
def test_no_changed_signed_request_is_taken(count: int) -> None:
    random_ = random.Random(1)
    names = ["content-digest", "signature-input", "signature"]
    for _ in range(count):
        shown = signed_request(anything(random_))
        assert takes_request(shown)
        for _ in range(5):
            assert not takes_request(differing(random_, shown, names))
        assert not takes_request(shown, secret="another" * 6)


def test_a_signed_request_is_the_one_of_the_rfc() -> None:
    shown = ShownRequest("POST", "/a/b", "c=d", {}, b"{}")
    headers = signed_requests.sign(shown, HOST, "k", "secret", created=1, nonce="n" * 16)
    digest = "sha-256=:RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o=:"
    assert headers["Content-Digest"] == digest
    params = (
        '("@method" "@authority" "@path" "@query" "content-digest");created=1;'
        f'nonce="{"n" * 16}";keyid="k";alg="hmac-sha256"'
    )
    assert headers["Signature-Input"] == f"sig={params}"
    base = (
        f'"@method": POST\n"@authority": {HOST}\n"@path": /a/b\n"@query": ?c=d\n'
        f'"content-digest": {digest}\n"@signature-params": {params}'
    )
    made = hmac.new(b"secret", base.encode(), hashlib.sha256).digest()
    assert headers["Signature"] == f"sig=:{base64.b64encode(made).decode()}:"


def test_a_signed_request_counts_for_five_minutes_by_the_clock_it_is_given() -> None:
    shown = signed_request(ShownRequest("GET", "/", "", {}))
    assert takes_request(shown, CLOCK + 300)
    assert takes_request(shown, CLOCK - 300)
    assert not takes_request(shown, CLOCK + 301)
    assert not takes_request(shown, CLOCK - 301)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"@query" ', ""),
        ('"@query"', '"@path"'),
        (';nonce="nnnnnnnnnnnnnnnn"', ""),
        (';nonce="nnnnnnnnnnnnnnnn"', ';nonce="n"'),
        ("hmac-sha256", "rsa-v1_5-sha256"),
        (";created=", ';created="0";created='),
        ("sig=(", "sig2=("),
    ],
)
def test_other_shapes_of_signature_are_refused(old: str, new: str) -> None:
    shown = signed_request(ShownRequest("GET", "/", "", {}))
    declared = shown.headers["signature-input"].replace(old, new)
    assert declared != shown.headers["signature-input"]
    assert not takes_request(replace(shown, headers={**shown.headers, "signature-input": declared}))


def signed_url(shown: ShownRequest, **more: object) -> ShownRequest:
    given = {"levels": "pr", "start": NOW, "end": NOW + timedelta(days=1)} | more
    added = signed_urls.sign("shop", KEY, SECRET, **given)  # type: ignore[arg-type]
    return replace(shown, query="&".join(filter(None, [shown.query, added])))


def takes_url(shown: ShownRequest, now: float = CLOCK, account: str = "shop") -> bool:
    return is_taken(lambda: signed_urls.read(shown, account, now))


@proves("a signature counts")
@often
def test_no_changed_signed_address_is_taken(count: int) -> None:
    random_ = random.Random(2)
    for _ in range(count):
        queue = random_.choice([None, text(random_)])
        plain = replace(anything(random_), query="")
        shown = signed_url(plain, queue=queue, reads_only=plain.method == "GET")
        assert takes_url(shown)
        for _ in range(5):
            # Only what the signature covers stands in this query.
            assert not takes_url(replace(shown, query=changed(random_, shown.query)))
        assert not takes_url(shown, account="shop2")
        assert not takes_url(replace(shown, query=f"{shown.query}&q=other"))


def test_a_signed_address_has_levels_times_methods_and_a_queue() -> None:
    shown = signed_url(ShownRequest("GET", "/", "a=b", {}), reads_only=True, queue="orders")
    read = signed_urls.read(shown, "shop", CLOCK)
    assert (read.key_id, read.levels, read.queue) == (KEY, "rp", "orders")
    assert not takes_url(replace(shown, method="POST"))
    assert not takes_url(shown, CLOCK - 1)
    assert not takes_url(shown, CLOCK + 86_400)
    assert takes_url(replace(shown, query=shown.query.replace("a=b", "a=c")))


def test_a_signed_address_lasts_seven_days_at_most() -> None:
    shown = ShownRequest("GET", "/", "", {})
    assert takes_url(signed_url(shown, end=NOW + timedelta(days=7)))
    assert not takes_url(signed_url(shown, end=NOW + timedelta(days=7, seconds=1)))


def aws_call(random_: random.Random, secret: str = SECRET) -> ShownRequest:
    """A call as botocore signs it."""
    path = random_.choice(["/", f"/{text(random_)}/{text(random_)}", "/a%20b/"])
    query = "&".join(f"{text(random_)}={text(random_)}" for _ in range(random_.randrange(3)))
    body = random_.randbytes(random_.randrange(80))
    headers = {
        "Content-Type": "application/x-amz-json-1.0",
        "Host": HOST,
        "X-Amz-Target": f"AmazonSQS.{text(random_)}",
        "X-Amzn-Query-Mode": random_.choice(["true", "a   b  c"]),
    }
    address = f"http://{HOST}{path}" + (f"?{query}" if query else "")
    request = AWSRequest("POST", address, data=body, headers=headers)
    SigV4Auth(Credentials(KEY, secret), "sqs", "eu-west-1").add_auth(request)
    small = {name.lower(): str(value) for name, value in request.headers.items()}
    return ShownRequest("POST", path, query, small, body)


def test_the_path_is_signed_without_dots_and_empty_parts() -> None:
    for path in ["/a//b/../c/", "/./a", "//", "/a/.."]:
        request = AWSRequest("POST", f"http://{HOST}{path}", data=b"{}", headers={"Host": HOST})
        request.headers["X-Amz-Target"] = "AmazonSQS.SendMessage"
        SigV4Auth(Credentials(KEY, SECRET), "sqs", "eu-west-1").add_auth(request)
        small = {name.lower(): str(value) for name, value in request.headers.items()}
        shown = ShownRequest("POST", path, "", small, b"{}")
        assert takes_call(shown, shown), path


def takes_call(
    shown: ShownRequest, made: ShownRequest, ahead: float = 0.0, secret: str = SECRET
) -> bool:
    now = datetime.strptime(made.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    try:
        found = sigv4.read(shown, now.timestamp() + ahead)
    except BadCredentials:
        return False
    return found.key_id == KEY and found.is_by(secret, shown.body)


@proves("a signature counts")
@often
def test_what_botocore_signs_is_taken_and_no_changed_call_is(count: int) -> None:
    random_ = random.Random(3)
    names = ["authorization", "x-amz-date", "x-amz-target", "host", "content-type"]
    for _ in range(count):
        shown = aws_call(random_)
        assert takes_call(shown, shown)
        for _ in range(5):
            assert not takes_call(differing(random_, shown, names), shown)
        assert not takes_call(shown, shown, secret="another" * 6)


def test_a_call_of_aws_counts_for_fifteen_minutes() -> None:
    shown = aws_call(random.Random(4))
    assert takes_call(shown, shown, 900)
    assert takes_call(shown, shown, -900)
    assert not takes_call(shown, shown, 901)
    assert not takes_call(shown, shown, -901)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
        ("x-amz-security-token", "token"),
    ],
)
def test_unsigned_bodies_and_session_tokens_are_refused(header: str, value: str) -> None:
    shown = aws_call(random.Random(5))
    assert not takes_call(replace(shown, headers={**shown.headers, header: value}), shown)


def test_the_target_has_to_be_signed() -> None:
    request = AWSRequest("POST", f"http://{HOST}/", data=b"{}", headers={"Host": HOST})
    SigV4Auth(Credentials(KEY, SECRET), "sqs", "eu-west-1").add_auth(request)
    small = {name.lower(): str(value) for name, value in request.headers.items()}
    shown = ShownRequest("POST", "/", "", {**small, "x-amz-target": "AmazonSQS.PurgeQueue"}, b"{}")
    assert not takes_call(shown, shown)


def test_a_nonce_counts_once_until_its_request_counts_no_longer() -> None:
    table = nonces.Nonces()
    assert table.take("a", "1", 300, 0)
    assert not table.take("a", "1", 300, 300)
    assert not table.take("a", "1", 600, 300)
    assert table.take("b", "1", 600, 300)
    assert table.take("a", "1", 700, 400)


def test_a_full_table_of_nonces_refuses_new_ones_of_that_key_only() -> None:
    table = nonces.Nonces(most_each=2, most=3)
    assert table.take("a", "1", 300, 0)
    assert table.take("a", "2", 300, 0)
    with pytest.raises(nonces.TooManyNonces):
        table.take("a", "3", 300, 0)
    assert not table.take("a", "2", 300, 0)
    assert table.take("b", "3", 300, 0)
    with pytest.raises(nonces.TooManyNonces):
        table.take("c", "1", 300, 0)
    assert table.take("a", "3", 900, 600)
    assert table.take("c", "1", 900, 600)
