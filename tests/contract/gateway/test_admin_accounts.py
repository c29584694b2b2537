"""Accounts, keys and rights on the page, and by the calls of the admin port."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from consumers.gateway.pages.rest import CALLS
from penstock import accounts
from tests.contract.gateway.kit import MASTERS, Client, Gateway, Reply, send
from tests.contract.gateway.page_kit import KEY, NASTY, Visitor, page_of, text_of as read
from tests.contract.pages.blocks import text_of
from tests.kit.proof import proves

DOCS = "docs/reference/gateway.md"
_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    return f"tenant{next(_numbers)}"


def names(gateway: Gateway) -> set[str]:
    return {each.account for each in accounts.list_accounts(gateway.owner)}


def test_an_account_is_made_gets_a_key_and_loses_it(
    gateway: Gateway, page: Visitor, name: str
) -> None:
    assert page.post("/accounts", account=name).status == 303
    assert page.post("/accounts", account=name).status == 409
    assert name in page.text("/accounts", after=name[:-1])
    made = page.post("/account/key", account=name, levels="rpgc")
    secret = re.findall(r'class="secret">([^<]+)<', made.body.decode())
    client = Client(gateway.port, name, accounts.NewKey(name, "", *secret))
    assert client("POST", "/queues", {"queueName": "mails"}).status == 201
    shown = page.text("/account", account=name)
    assert secret[0] in shown and secret[1] not in shown and "never 0" in shown
    assert "operate" in shown and "create key" in shown
    told = page.post("/account/key/revoke", account=name, key=secret[0])
    assert (told.status, told.headers["location"]) == (303, f"/account?account={name}")
    assert client("GET", "/queues").status == 401
    assert page.post("/account/key/revoke", account=name, key=secret[0]).status == 409
    assert "revoked" in page.text("/account", account=name)
    assert secret[0] in page.text("/audit")


def test_rights_are_given_and_taken_back(gateway: Gateway, page: Visitor, name: str) -> None:
    other = f"{name}-other"
    for each in (name, other):
        accounts.create_account(gateway.owner, each)
    assert page.post("/account/grant", account=name, namespace=other, verb="read").status == 303
    assert f"{other} read" in page.text("/account", account=name)
    assert page.post("/account/revoke", account=name, namespace=other, verb="read").status == 303
    assert f"{other} read" not in page.text("/account", account=name)
    assert page.post("/account/grant", account=name, namespace=other, verb=NASTY).status == 409
    assert page.post("/account/grant", account=name, namespace="nowhere", verb="read").status == 409


def test_an_account_is_deleted_after_its_name_was_typed(
    gateway: Gateway, page: Visitor, name: str
) -> None:
    gateway.client(name)
    assert "keys 1 end at once" in page.text("/account/delete", account=name)
    assert page.post("/account/delete", account=name, typed="x").status == 400
    assert name in names(gateway)
    assert page.post("/account/delete", account=name, typed=name).status == 303
    assert name not in names(gateway)
    reply = page.get("/account", account=NASTY)
    assert b"<script" not in reply.body and "there is no account" in read(reply)


class Program:
    """Makes calls with the key of the page."""

    def __init__(self, port: int, key: str = KEY) -> None:
        self._port = port
        self._told = {"Authorization": f"Bearer {key}"} if key else {}

    def __call__(self, method: str, path: str, body: Any = None) -> Reply:
        data = b"" if body is None else json.dumps(body).encode()
        return send(self._port, method, f"/api/v1/{path}", data, self._told)


def test_programs_make_accounts_keys_and_rights(
    gateway: Gateway, page: Visitor, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each act is a line of the log, without a secret; what was refused or only read is none."""
    caplog.set_level("INFO", logger="penstock.page")
    call = Program(page.port)
    made = call("POST", "accounts", {"account": name})
    assert (made.status, made.json()["account"]) == (201, name)
    twice = call("POST", "accounts", {"account": name})
    assert (twice.status, b"there is already an account" in twice.body) == (409, True)
    assert name in {each["account"] for each in call("GET", "accounts").json()["accounts"]}
    key = call("POST", f"accounts/{name}/keys", {"levels": "rpgc", "ends_at": "2999-01-31"}).json()
    client = Client(gateway.port, name, accounts.NewKey(name, "", key["key_id"], key["secret"]))
    assert client("GET", "/queues").status == 200
    (found,) = call("GET", f"accounts/{name}/keys").json()["keys"]
    assert (found["key_id"], found["levels"]) == (key["key_id"], "rpgc")
    assert found["ends_at"].startswith("2999-01-31T00:00:00")
    assert key["secret"] not in str(found)
    right = {"namespace": name, "verb": "read"}
    assert call("POST", f"accounts/{name}/grants", right).json() == right
    assert [name, "read"] in call("GET", f"accounts/{name}/grants").json()["grants"]
    taken = call("DELETE", f"accounts/{name}/grants?namespace={name}&verb=read")
    assert taken.json() == {"revoked": True}
    assert call("GET", f"accounts/{name}").json()["keys"] == 1
    assert call("DELETE", f"accounts/{name}/keys/{key['key_id']}").json() == {"revoked": True}
    assert call("DELETE", f"accounts/{name}/keys/{key['key_id']}").json() == {"revoked": False}
    done = [each["action"] for each in call("GET", f"audit?account={name}").json()["audit"]]
    assert done == ["revoke key", "revoke", "grant", "create key", "create account"]
    assert call("DELETE", f"accounts/{name}").json()["keys"] == 0
    acts = [each.__dict__ for each in caplog.records if each.msg == "a program has acted"]
    assert [(each["method"], each["path"].count("/")) for each in acts] == [
        *[("POST", 3), ("POST", 5), ("POST", 5), ("DELETE", 5)],
        *[("DELETE", 6), ("DELETE", 6), ("DELETE", 4)],
    ]
    assert {each["address"] for each in acts} == {"127.0.0.1"}
    assert key["secret"] not in str(acts)
    assert name not in names(gateway)


def test_the_page_of_the_docs_has_each_call() -> None:
    rows = re.findall(
        r"^\| (GET|POST|DELETE) \| `/((?:accounts|audit)\S*)` \|", text_of(DOCS), re.M
    )
    assert rows == [*CALLS]


def test_what_is_wrong_with_a_call_is_told(gateway: Gateway, page: Visitor, name: str) -> None:
    accounts.create_account(gateway.owner, name)
    call = Program(page.port)
    for status, method, path, body in (
        (404, "GET", "accounts/nobody", None),
        (404, "GET", "accounts/nobody/keys", None),
        (404, "POST", "accounts/nobody/keys", {}),
        (404, "DELETE", "accounts/nobody/keys/x", None),
        (404, "GET", "accounts/nobody/grants", None),
        (404, "GET", "nothing", None),
        (404, "POST", "accounts/a/b/c/d", {}),
        (400, "POST", "accounts", {}),
        (400, "POST", "accounts", {"account": 7}),
        (400, "POST", "accounts", [1]),
        (400, "POST", "accounts", {"account": "a/b"}),
        (400, "POST", "accounts", {"account": f"{name}x", "keep": [["a"]]}),
        (400, "POST", "accounts", {"account": f"{name}x", "keep": "a"}),
        (400, "POST", f"accounts/{name}/keys", {"levels": "xyz"}),
        (400, "POST", f"accounts/{name}/keys", {"ends_at": "soon"}),
        (400, "POST", f"accounts/{name}/keys", {"queue": 7}),
        (404, "POST", f"accounts/{name}/grants", {"namespace": "nowhere", "verb": "read"}),
        (400, "POST", f"accounts/{name}/grants", {"namespace": name, "verb": "eat"}),
        (409, "DELETE", f"accounts/{name}/grants?namespace={name}&verb=operate", None),
    ):
        reply = call(method, path, body)
        assert reply.status == status, (method, path, body, reply)
        assert reply.json()["message"]
    assert send(
        page.port, "POST", "/api/v1/accounts", b"{", {"Authorization": f"Bearer {KEY}"}
    ).status == 400  # fmt: skip


@proves("the page of the gateway")
def test_only_the_key_makes_calls_and_only_where_the_page_writes(
    gateway: Gateway, page: Visitor, name: str
) -> None:
    """Guard: a cookie alone makes no call, so no form of another page does."""
    with_cookie = send(
        page.port, "POST", "/api/v1/accounts", b'{"account": "x"}', {"Cookie": page.cookie}
    )
    assert with_cookie.status == 401
    assert Program(page.port, "wrong")("GET", "accounts").status == 401
    with page_of(gateway.db.url, writes=False) as reading:
        call = Program(reading.port)
        assert call("GET", "accounts").status == 200
        assert call("POST", "accounts", {"account": name}).status == 403
        assert call("DELETE", f"accounts/{name}").status == 403
        assert "Make an account" not in reading.text("/accounts")
    with page_of(gateway.db.url, key=None) as closed:
        assert Program(closed.port)("GET", "accounts").status == 403
    with page_of(gateway.db.url) as guessed:
        wrong = Program(guessed.port, "wrong")
        assert [wrong("GET", "audit").status for _ in range(11)] == [401] * 10 + [429]
    assert name not in names(gateway)


def test_a_login_of_the_role_accounts_does_this_and_nothing_else(
    gateway: Gateway, name: str
) -> None:
    login = gateway.tenants.login("accounts")
    with page_of(gateway.tenants.url_of(login)) as page:
        call = Program(page.port)
        assert call("POST", "accounts", {"account": name}).status == 201
        assert call("POST", f"accounts/{name}/keys", {}).status == 201
        assert call("GET", f"accounts/{name}/grants").status == 403
        assert "this login may not see rights" in page.text("/account", account=name)
        assert "may not do this" in page.text("/consumers")
    assert MASTERS.newest in str(accounts.keys_of(gateway.owner, name))
