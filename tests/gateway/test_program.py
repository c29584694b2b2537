"""`penstock gateway` as its operator sees it."""

from __future__ import annotations

import resource
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest

from consumers import daemon
from consumers.gateway import embedded
from consumers.gateway.pages.settings import PageSettings, page_settings
from consumers.gateway.settings import gateway_options, gateway_settings, gateway_url
from consumers.gateway.worker import GatewayWorker, room_for
from consumers.settings import Settings
from penstock import accounts
from penstock.accounts import MasterKeys
from penstock.errors import ActsForNobody, ConfigurationError
from penstock.upkeep.pages import PageRequest
from penstock.upkeep.state import Calls
from tests.consumers.process import PENSTOCK, Daemon, until
from tests.contract.gateway.kit import send
from tests.kit.tenants import tenants_of


def test_it_serves_on_an_embedded_database_until_it_is_told_to_stop(
    database_url: str, tmp_path: Path
) -> None:
    with (
        psycopg.connect(database_url, autocommit=True) as owner,
        tenants_of(owner, database_url) as tenants,
    ):
        tenants.install()  # so the roles, which are the whole server's, are gone afterwards
        url, masters = embedded.made(database_url, tmp_path)
        assert embedded.made(database_url, tmp_path)[0] == url
        file = tmp_path / embedded._FILE
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text() not in url  # what the database is told derives no key
        accounts.create_account(owner, "shop")
        key = accounts.create_key(owner, "shop", masters)
        environment = {
            "PENSTOCK_MASTER_KEYS_FILE": str(file),
            "PENSTOCK_GATEWAY_REQUEST_LOG": "all",
            "PENSTOCK_GATEWAY_ADMIN_KEY": "k" * 40,
            "PENSTOCK_GATEWAY_ADMIN_DATABASE_URL": database_url,
        }
        started = Daemon(
            url, tmp_path / "log", ("gateway", "--port", "0"), environment, program=PENSTOCK
        )
        try:
            port = _port(started.wait_started())
            told = {"Authorization": f"Key {key.key_id}.{key.secret}"}
            path = "/api/v1/accounts/shop/queues?secret=in-a-query"
            assert send(port, "GET", path, headers=told).status == 200
            assert send(port, "GET", "/a%0Ab%3Fsig=encoded", headers=told).status == 404
            until(lambda: started.get("/readyz")[0] == 200, "it is ready")
            assert started.get("/livez")[0] == 200
            assert "The key of the page" in started.get("/sign-in")[1]
            assert started.metric("penstock_gateway_requests_total", "gateway") == 2
            started.terminate()
            assert started.exit_code() == 0
        finally:
            started.kill()
            owner.execute(f"DROP OWNED BY {embedded.LOGIN}")
            owner.execute(f"DROP ROLE {embedded.LOGIN}")
    line, other = [each for each in started.events() if each["event"] == "request"]
    assert other["path"] == "/a%0Ab"
    assert (line["method"], line["status"], line["account"]) == ("GET", 200, "shop")
    assert key.secret not in started.text() and "k" * 40 not in started.text()
    assert "in-a-query" not in started.text()
    assert "encoded" not in started.text()


def _port(started: Daemon) -> int:
    """The port of the API."""
    line = until(
        lambda: [each for each in started.events() if each["event"] == "gateway listens"], "it"
    )[0]
    return int(line["port"])


def test_a_login_with_other_rights_is_refused(database_url: str, tmp_path: Path) -> None:
    settings = gateway_settings(database_url, gateway_options({"port": "0"}, {}))
    with pytest.raises(ActsForNobody):
        GatewayWorker(settings, MasterKeys(["m" * 40])).run(Event())


@pytest.mark.parametrize(
    ("soft", "hard", "room", "asked"),
    [
        (1_024, 524_288, 10_000, 10_256),
        (1_024, 4_096, 3_840, 4_096),
        (1_024, resource.RLIM_INFINITY, 10_000, 10_256),
        (65_536, 65_536, 10_000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 10_000, None),
    ],
)
def test_it_asks_for_room_for_its_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, room: int, asked: int | None
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limits.append(given))
    assert room_for(10_000) == room
    assert limits == ([] if asked is None else [(asked, hard)])


def test_options_come_from_flags_variables_and_one_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("port: 1\nconnections: 3\nhosts: a, B\n")
    environ = {"PENSTOCK_GATEWAY_CONFIG": str(file), "PENSTOCK_GATEWAY_CONNECTIONS": "4"}
    found = gateway_options({"port": "2"}, environ)
    settings = gateway_settings("postgresql://x@y/z", found)
    assert (settings.port, settings.connections) == (2, 4)
    assert settings.names() == {"a", "b"}
    assert found.sources["connections"] == "environment"


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        ({}, {"PENSTOCK_GATEWAY_PROT": "1"}, "PENSTOCK_GATEWAY_PORT"),
        ({"port": "x"}, {}, "--port"),
        ({"tls_certificate": "/nowhere"}, {}, "TLS"),
        ({"tls_certificate": "/nowhere", "tls_key": "/nowhere"}, {}, "/nowhere"),
    ],
)
def test_what_is_wrong_is_refused_before_it_starts(
    flags: dict[str, Any], environ: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        gateway_settings("postgresql://x@y/z", gateway_options(flags, environ))


def test_the_page_has_a_key_and_an_address_of_its_own(tmp_path: Path) -> None:
    both = {"PENSTOCK_DATABASE_URL": "postgresql://a@b/c"}
    assert page_settings(both, "write").key is None
    file = tmp_path / "key"
    both["PENSTOCK_GATEWAY_ADMIN_KEY_FILE"] = str(file)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        page_settings(both, "write")
    file.write_text("short")
    with pytest.raises(ConfigurationError, match="too short"):
        page_settings(both, "write")
    file.write_text(f"{'k' * 40}\n")
    assert page_settings(both, "read") == PageSettings("k" * 40, "postgresql://a@b/c")
    both["PENSTOCK_GATEWAY_ADMIN_DATABASE_URL"] = "mysql://d@e/f"
    assert page_settings(both, "write") == PageSettings("k" * 40, "mysql://d@e/f", writes=True)
    assert "kkk" not in repr(page_settings(both, "write"))


def test_the_gateway_may_have_an_address_of_its_own() -> None:
    both = {"PENSTOCK_DATABASE_URL": "postgresql://a@b/c"}
    assert gateway_url(both) == "postgresql://a@b/c"
    both["PENSTOCK_GATEWAY_DATABASE_URL"] = "mysql://d@e/f"
    assert gateway_url(both) == "mysql://d@e/f"


def test_the_daemon_has_a_role_for_it(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_MASTER_KEYS", "m" * 40)
    monkeypatch.setenv("PENSTOCK_GATEWAY_DATABASE_URL", database_url)
    monkeypatch.setenv("PENSTOCK_GATEWAY_PORT", "0")
    settings = Settings(url="postgresql://nobody@nowhere/x", roles=("gateway",))
    with closing(daemon._pages()) as pages:
        assert pages(PageRequest("GET", "/", "", {}, b"", "127.0.0.1")).status == 403
    (worker,) = daemon.build_workers(settings, Calls())
    assert isinstance(worker, GatewayWorker)
    with pytest.raises(ActsForNobody):  # it has reached its own database, as its owner
        worker.run(Event())
