"""`penstock doctor`: what it prints, its exit codes, and who may run it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.doctor import doctor
from resources.embedded import EmbeddedPostgres
from tests.doctor.kit import NOW, ROOT, Connection, begin, only

pytestmark = pytest.mark.timeout(240)


def penstock_doctor(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("penstock"), "doctor", *arguments],
        capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PENSTOCK_DATABASE_URL": url, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_the_command_says_a_line_for_each_finding(url: str, admin: Connection) -> None:
    well = penstock_doctor(url)
    assert (well.returncode, well.stdout, well.stderr) == (0, "", "nothing is wrong\n")
    assert json.loads(penstock_doctor(url, "--output", "json").stdout) == []
    with ExitStack() as stack:
        begin(stack, url, "SELECT pg_current_xact_id()", application_name="one two")
        admin.execute("ALTER DATABASE shop SET synchronous_commit = off")
        sick = penstock_doctor(url, "--snapshot-age", "0")
        assert (sick.returncode, sick.stderr) == (1, "")
        lines = sick.stdout.splitlines()
        assert [line.split(": ")[:2] for line in lines] == [
            ["error", "synchronous_commit"],
            ["warning", "snapshot"],
        ]
        assert shlex.split(lines[0].rpartition(". run: ")[2])[0] == "psql"
        listed = json.loads(penstock_doctor(url, "--output", "json", "--snapshot-age", "0").stdout)
        assert [set(each) for each in listed] == [
            {"check", "severity", "what", "command", "page"}
        ] * 2
        admin.execute("ALTER DATABASE shop RESET synchronous_commit")


def test_nobody_to_examine_is_exit_code_3() -> None:
    done = penstock_doctor("postgresql://teller:s3cret@127.0.0.1:1/bank")
    assert (done.returncode, done.stdout) == (3, "")
    assert "s3cret" not in done.stderr


def test_an_operator_may_ask(server: EmbeddedPostgres, url: str, admin: Connection) -> None:
    """The functions look with the rights of their owner."""
    from penstock.topics import rights

    rights.install(admin)
    admin.execute("CREATE ROLE watcher LOGIN PASSWORD 'pw' IN ROLE penstock_operator")
    own = url.replace(urlsplit(url).netloc, f"watcher:pw@127.0.0.1:{server.port}")
    with ExitStack() as stack:
        begin(stack, url, "SELECT pg_current_xact_id()")
        assert only(doctor(own, NOW)).check == "snapshot"
    admin.execute("DROP ROLE watcher")
