"""A gateway that is killed in mid-request, and its database: 2xx is there, and nothing twice."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from penstock import database
from tests import servers
from tests.faults.gateway.attack import Attacked, attacked, gateway_url
from tests.faults.gateway.clients import MAILS
from tests.faults.proxy import Address, address_of
from tests.faults.servers import crashing_server
from tests.faults.world import SEED
from tests.kit.proof import proves
from tests.kit.tenants import tenants_of

KILLS, CRASHES = 50, 20


def _attack(attack: Attacked, kills: int, crashes: int) -> dict[str, dict[str, int]]:
    """Faults in an order that the seed draws.  Returns what was answered, and what was not."""
    faults = [attack.kill] * kills + [attack.crash] * crashes
    attack.chance.shuffle(faults)
    for each in faults:
        each()
    attack.end()
    told = attack.clients.told
    figures = {
        "done": dict(attack.done),
        "answered": {name: len(each.answered) for name, each in told.items()},
        "unknown": {name: len(each.unknown()) for name, each in told.items()},
    }
    print(json.dumps(figures))  # noqa: T201 - make test-long ARGS="-k gateway_attack -s" shows it
    assert attack.verdict() == [], f"seed {SEED}: {figures}"
    assert len(attack.clients.finished) >= figures["answered"][MAILS]
    return figures


class Shared:
    """The server of all tests: instead of a crash, the sessions of the gateway are ended."""

    def __init__(self, owner: psycopg.Connection, url: str, login: str) -> None:
        self.url = url
        self._owner = owner
        self._login = login

    def address(self) -> Address:
        return address_of(self.url)

    def crash(self) -> None:
        self._owner.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s",
            [self._login],
        )

    def restart(self) -> None:
        """It is there."""


@proves("a publish over HTTP")
@proves("a resend of SQS", how="under kills of the gateway and its database")
def test_a_gateway_is_killed_in_mid_request_in_small(database_url: str, tmp_path: Path) -> None:
    """Guards: an answer comes after the commit; what is not known to be lost is not sent again."""
    with (
        psycopg.connect(database_url, autocommit=True) as owner,
        tenants_of(owner, database_url) as tenants,
    ):
        tenants.install()
        login = tenants.login("gateway")
        database.call(owner, "record_gateway", login=login)
        shared = Shared(owner, database_url, login)
        with attacked(shared, tenants.url_of(login), tmp_path / "gateways", SEED) as attack:
            _attack(attack, 1, 3)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", servers.DATABASES)
def test_a_gateway_is_killed_in_mid_request(engine: str, tmp_path: Path) -> None:
    """50 kills of the gateway and 20 of its database."""
    if engine not in servers.chosen():
        pytest.skip(f"this run is about {', '.join(servers.chosen())}")
    with crashing_server(engine, tmp_path / "server") as server:
        url = gateway_url(server)
        with attacked(server, url, tmp_path / "gateways", SEED) as attack:
            figures = _attack(attack, KILLS, CRASHES)
    assert all(figures["unknown"].values())
