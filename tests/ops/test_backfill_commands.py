"""``penstock backfill``: ask, look, cancel, work off; and the form without a command's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.backfill.relay_again import place_of
from ops.backfill.requests import claim_backfill
from ops.sinks.jsonl import JsonlSink
from penstock import log
from penstock.errors import BelowLowSequence
from tests.kit.backfill import EPOCHS, EVENTS, filled, target
from tests.kit.log import Connection, known_as
from tests.kit.stream import STREAM
from tests.ops.conftest import Run


@pytest.fixture
def place(tmp_path: Path) -> str:
    """The target that holds the copies, as an option."""
    found = target(tmp_path)
    return f"{found.name}={found.uri}"


@pytest.fixture
def policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy file that names two targets."""
    file = tmp_path / "policies.yaml"
    file.write_text(f"targets: {{one: {target(tmp_path).uri}, two: {tmp_path / 'two'}}}\n")
    monkeypatch.setenv("PENSTOCK_POLICIES", str(file))


def test_from_a_request_to_its_end(
    run: Run, connection: Connection, tmp_path: Path, place: str
) -> None:
    """A dry run says how much; the request does as much; SQL reads it, until it is released."""
    events = filled(connection, tmp_path, dropped=True)
    window = ("--from-sequence", "8", "--to-sequence", "30")
    asked = run("backfill", "request", "rehydrate", STREAM, *window, "--dry-run", "-o", "json")
    (dry,) = asked.rows
    assert (dry["units"], dry["total_events"]) == (4, 28)
    (real,) = run("backfill", "request", "rehydrate", STREAM, *window, "-o", "json").rows
    (result,) = run("backfill", "run", "--target", place, "-o", "json").rows
    assert (result["request"], result["state"]) == (real["request"], "done")
    assert result["done_events"] == dry["total_events"]
    assert log.fetch(connection, STREAM, 0, 8, 28) == events[7:35]
    rows = run("backfill", "show", str(real["request"]), "-o", "json").rows
    assert [row["log_epoch"] for row in rows] == [2, 3, 4, 5]
    assert {row["done_by"] for row in rows} == {1}
    assert str(real["request"]) in run("backfill", "show", str(real["request"])).out
    assert run("backfill", "release", STREAM).err == "released 4 log epochs\n"
    with pytest.raises(BelowLowSequence):
        log.fetch(connection, STREAM, 0, 8, 1)


def test_what_a_dead_runner_holds_is_worked_off(
    run: Run, connection: Connection, tmp_path: Path, place: str
) -> None:
    """Guard: backfill_all looks again for what can be claimed after the units of the engine."""
    filled(connection, tmp_path, dropped=True)
    (asked,) = run("backfill", "request", "rehydrate", STREAM, "-o", "json").rows
    assert claim_backfill(connection, "a dead one") is not None
    assert run("backfill", "run", "--target", place, "-o", "json").rows == []
    connection.execute("UPDATE penstock.backfill_requests SET deadline = now()")
    (row,) = run("backfill", "run", "--target", place, "-o", "json").rows
    assert (row["request"], row["state"]) == (asked["request"], "done")


def test_a_window_into_files(run: Run, connection: Connection, tmp_path: Path, place: str) -> None:
    """What the database has dropped comes from the target; the files are the request's own."""
    filled(connection, tmp_path, dropped=True)
    sink = f"jsonl:{tmp_path / 'out'}"
    (asked,) = run("backfill", "request", "relay", STREAM, "--target", sink, "-o", "json").rows
    request = str(asked["request"])
    assert run("backfill", "run", "--request", request, "--target", place).code == 0
    folder = tmp_path / "out" / place_of(connection, int(request))
    path = JsonlSink(folder).path(known_as(connection, STREAM), 0)
    assert path.read_bytes().count(b"\n") == EPOCHS * EVENTS
    assert run("backfill", "run", "--request", request, "--target", place).code == 1
    assert run("backfill", "run", "--target", place).code == 0


@pytest.mark.usefixtures("policies")
def test_a_copy_whose_file_is_gone_is_asked_for(
    run: Run, connection: Connection, tmp_path: Path, database_url: str
) -> None:
    """Only with --audit: a record says what was true when the copy was made."""
    filled(connection, tmp_path, dropped=False)
    command = ("backfill", "request", "copy", STREAM, "--target", "one", "-o", "json")
    assert run(*command).rows[0]["units"] == 0
    # Without a Delta log, which these files do not have, none of them is a copy.
    assert run(*command, "--audit").rows[0]["units"] == EPOCHS


@pytest.mark.usefixtures("policies")
def test_a_request_is_cancelled_and_listed(
    run: Run, connection: Connection, tmp_path: Path
) -> None:
    filled(connection, tmp_path, dropped=False)
    (asked,) = run(
        "backfill", "request", "copy", STREAM, "--target", "two", "--priority", "3", "-o", "json"
    ).rows
    request = str(asked["request"])
    assert run("backfill", "cancel", request).err == f"request {request} is cancelled\n"
    assert run("backfill", "cancel", request).code == 1
    assert run("backfill", "cancel", "999").code == 2
    (row,) = run("backfill", "list", STREAM, "--state", "cancelled", "-o", "json").rows
    assert (row["request"], row["units"]) == (asked["request"], EPOCHS)
    assert run("backfill", "list", "--state", "running", "-o", "json").rows == []
    assert run("backfill", "show", "999").code == 2
    bogus = run("backfill", "list", "--state", "bogus")
    assert bogus.code == 2
    assert "waiting, running, done, failed, cancelled" in bogus.err


@pytest.mark.usefixtures("policies")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["other", STREAM], "no backfill of the kind"),
        (["copy", STREAM], "copy"),
        (["copy", "tests/nobody", "--target", "one"], "no topic"),
        (["rehydrate", STREAM, "--from-sequence", "9", "--to-sequence", "8"], "9 to 8"),
        (["rehydrate", STREAM, "--from-time", "2026-11-23"], "zone"),
        (["rehydrate", STREAM, "--to-time", "soon"], "zone"),
        (["rehydrate", STREAM, "--audit"], "--audit"),
        (["relay", STREAM, "--target", "nobody"], "no relay"),
        (["relay", STREAM, "--target", "ftp:somewhere"], "no sink"),
    ],
)
def test_a_bad_request_is_refused(
    run: Run, connection: Connection, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    filled(connection, tmp_path, dropped=False)
    refused = run("backfill", "request", *arguments)
    assert refused.code == 2
    assert problem in refused.err
    assert len(refused.err.splitlines()) == 1
    assert run("backfill", "list", "-o", "json").rows == []


def test_the_form_without_a_name_is_still_there(run: Run, connection: Connection) -> None:
    """``penstock backfill TOPIC --target NAME``, with its option first or last."""
    for arguments in (["a/b", "--target", "moon"], ["--target", "moon", "a/b"]):
        refused = run("backfill", *arguments)
        assert refused.code == 2
        assert "moon" in refused.err
    assert "now" in run("backfill", "--help").out
