"""``penstock relay --order`` and ``penstock relay events``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.subscriptions import queue
from tests.ops.conftest import TOPIC, Run
from tests.ops.test_commands import Connection, fill
from tests.relay.receivers import Call, Says, receiving


def test_the_relay_of_a_queue_and_what_has_become_of_its_events(
    run: Run, connection: Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To a real receiver, which does not take one of them."""
    queue.subscribe(connection, "hooks", [TOPIC])
    fill(connection)
    run("sequence")
    with receiving() as receiver:
        for name, value in receiver.environ().items():
            monkeypatch.setenv(name, value)
        failing: list[str] = []

        def answer(call: Call) -> Says:
            failing[:] = failing or [call.headers["webhook-id"]]
            later = {"Retry-After": "300"}  # however slow the machine is
            return Says(500, later) if call.headers["webhook-id"] in failing else Says()

        receiver.answer = answer
        told = run("relay", "hooks", receiver.address, "--order", "key", "-o", "json")
        (row,) = json.loads(told.out)
        assert (told.code, row["events"], row["failures"]) == (1, 3, 1)
        found = [
            each
            for number in ("0", "1")
            for each in run("relay", "events", "hooks", TOPIC, number, "-o", "json").rows
        ]
        states = [(each["state"], each["attempts"]) for each in found]
        assert sorted(states, key=str) == [("pending", 1), *[("sent", None)] * 3]
        failing[:] = ["none"]
        wrong = run("relay", "hooks", f"jsonl:{tmp_path}", "--order", "none")
        assert (wrong.code, "in their order only" in wrong.err) == (2, True)
        given_up = run("relay", "hooks", receiver.address, "--order", "key", "--max-attempts", "1")
        assert given_up.code == 1  # it waits for its next attempt
        (row,) = run("relay", "status", "hooks", "-o", "json").rows
        assert (row["waiting"], row["delayed"], row["breaker"]) == (0, 1, "closed")
        assert "500" in row["last_error"]
