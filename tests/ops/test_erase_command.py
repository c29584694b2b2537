"""``penstock erase`` and ``penstock erasures``."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.archive.targets import Target
from tests.archive.logs import Log, bring
from tests.kit.erasing import SECRET, TOPIC, WHO, WHY, left_in, secret_log
from tests.kit.log import Connection
from tests.ops.conftest import Run


def test_from_a_look_to_the_record(
    run: Run,
    connection: Connection,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks for --yes, counts, erases, says what it does not reach, and keeps no key."""
    policies = tmp_path / "policies.yaml"
    policies.write_text("topics: {}\n")
    monkeypatch.setenv("PENSTOCK_POLICIES", str(policies))  # not those of this checkout
    log: Log = secret_log(connection, database_url)
    target = Target("a", str(tmp_path / "a"))
    bring(log, target, log.seal())
    asked = ("erase", "--topic", TOPIC, "--key", WHO, "--reason", WHY)
    places = ("--target", f"a={target.uri}")
    assert run(*asked, *places).code == 2
    assert run(*asked, "--yes").code == 3  # the target is not known
    (looked,) = run(*asked, *places, "--dry-run", "-o", "json").rows
    assert (looked["events_in_database"], looked["erasure"]) == (6, "")
    assert left_in(target) == 6
    done = run(*asked, *places, "--yes")
    assert done.code == 0
    assert "backups" in done.err
    assert left_in(target) == 0
    assert SECRET not in b"".join(bytes(row[7]) for row in log.rows())
    assert run(*asked, *places, "--yes").code == 1
    records = run("erasures", TOPIC, "-o", "json")
    assert [row["events"] for row in records.rows] == [0, 6]
    assert WHO not in records.out
