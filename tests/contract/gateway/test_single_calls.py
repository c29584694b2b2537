"""A call that is one statement for its account, and its connection."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.gateway import pool
from tests.contract.gateway.kit import Client, Gateway
from tests.contract.gateway.test_lost_connections import END, SESSIONS
from tests.kit.log import wait_until


def test_a_single_call_looks_whether_its_connection_was_cut(
    gateway: Gateway, shop: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the look it is sent into a dead connection, and nobody knows what became of it."""
    dialect = "postgres" if gateway.db.engine == "postgres" else "mysql"
    assert shop("POST", "/queues", {"queueName": "mails"}).status == 201

    def received() -> int:
        return shop("POST", "/queues/mails/receive", {}).status

    def present() -> set[Any]:
        return set(gateway.db.run(SESSIONS[dialect], {"login": gateway.login}))

    def cut() -> None:
        ended = present()
        for (session,) in ended:
            gateway.db.run(END[dialect].format(session))
        wait_until(lambda: not ended & present(), "they have ended")

    assert received() == 200
    cut()
    assert received() == 200
    monkeypatch.setattr(pool, "_is_hung_up", lambda _: False)
    cut()
    assert received() == 503
