"""What it costs to publish for an account: by turns with a login, on one server.

    python -m benchmarks.accounts [--rounds 7] [--events 2000]

Each event has a transaction of its own, sent in one round trip. The server does not wait for the
disk. It measures the processor time of the server's process for the session (Linux), which other
work on the machine disturbs less than the clock. It prints the median of the rounds for each way,
in microseconds an event, and its ratio to a restricted topic.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

import penstock
from penstock import accounts
from penstock.accounts import MasterKeys
from penstock.database.migrate import migrate
from penstock.topics import rights
from resources.embedded import EmbeddedPostgres

_PUBLISH = "SELECT penstock.publish(%s, %s)"
_PAYLOAD = b"x" * 200
_WALLED = "a login, a restricted topic"
_ACCOUNT, _LIMITED = "an account", "an account with a quota"

Way = Callable[[], None]


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--events", type=int, default=2_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"synchronous_commit": "off", "fsync": "off"}
        server = EmbeddedPostgres(Path(folder) / "postgres", settings=settings)
        server.start()
        try:
            _measure(server, options.rounds, options.events)
        finally:
            server.stop()


def _measure(server: EmbeddedPostgres, rounds: int, events: int) -> None:
    migrate(server.url())
    with (
        psycopg.connect(server.url(), autocommit=True) as owner,
        psycopg.connect(server.gateway_url(), autocommit=True) as gateway,
    ):
        ways = _ways(owner, gateway, events)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds + 1):
            for name, way in ways.items():
                connection = gateway if name in {_ACCOUNT, _LIMITED} else owner
                begun = _spent(connection)
                way()
                taken[name].append((_spent(connection) - begun) / events)
    base = median(taken[_WALLED][1:])
    for name, all_rounds in taken.items():
        middle = median(all_rounds[1:])  # the first one warms up
        print(f"{name:<44}{middle:8.1f} us an event, {middle / base:5.2f}")


def _spent(connection: Any) -> float:
    """The processor time of the session's process, in microseconds."""
    pid = connection.info.backend_pid
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1_000


def _ways(owner: Any, gateway: Any, events: int) -> dict[str, Way]:
    penstock.create_topic(owner, "open/orders", create_namespaces=True)
    penstock.create_topic(owner, "walled/orders", create_namespaces=True)
    rights.grant_namespace(owner, "walled", "postgres", "publish")
    most = 10**12
    for account in ("shop", "bank"):
        accounts.create_account(owner, account)
        penstock.create_topic(owner, f"{account}/orders")
    accounts.set_quota(owner, "bank", max_events=most, max_bytes=most, max_waiting=most)

    def by_login(topic: str, *before: Any) -> Way:
        return lambda: _publish(owner, events, topic, before)

    def by_account(account: str) -> Way:
        key = accounts.create_key(owner, account, MasterKeys(["m" * 32]))
        act_as = ("SELECT penstock.act_as(%s, %s)", (key.account_id, [key.key_id]))
        return lambda: _publish(gateway, events, f"{account}/orders", act_as)

    return {
        "a login, an open topic": by_login("open/orders"),
        _WALLED: by_login("walled/orders"),
        f"{_WALLED}, a second statement": by_login("walled/orders", "SELECT %s::text", ("x",)),
        _ACCOUNT: by_account("shop"),
        _LIMITED: by_account("bank"),
    }


def _publish(connection: Any, events: int, topic: str, before: tuple[Any, ...]) -> None:
    for _ in range(events):
        with connection.pipeline(), connection.transaction():
            if before:
                connection.execute(*before)
            connection.execute(_PUBLISH, (topic, _PAYLOAD))


if __name__ == "__main__":
    main()
