"""``penstock policy`` on the command line."""

from __future__ import annotations

from pathlib import Path

import psycopg

from penstock.subscriptions import policies
from tests.ops.conftest import TOPIC, Run

Connection = psycopg.Connection[tuple[object, ...]]


def test_the_file_is_compared_and_applied(run: Run, connection: Connection, tmp_path: Path) -> None:
    """Codes: 1 while they differ, 0 when they agree, 2 for a file that is wrong."""
    path = tmp_path / "policies.yaml"
    path.write_text(f"topics: {{{TOPIC}: {{retry: {{max_attempts: 3}}}}}}", "utf-8")
    differing = run("policy", "diff", str(path), "-o", "json")
    assert (differing.code, differing.json[0]["wanted"]) == (1, "max_attempts 3")
    assert run("policy", "apply", str(path)).code == 0
    assert run("policy", "diff", str(path)).code == 0
    path.write_text(f"topics: {{{TOPIC}: {{retry: {{tries: 3}}}}}}", "utf-8")
    for verb in ("diff", "apply"):
        refused = run("policy", verb, str(path))
        assert refused.code == 2
        assert "has no setting 'tries'" in refused.err
    (kept,) = policies.list_policies(connection)
    assert (kept.settings, kept.origin) == ({"max_attempts": 3}, f"file {path}")


def test_another_file_changes_nothing_until_it_is_told_to(
    run: Run, connection: Connection, tmp_path: Path
) -> None:
    """Both say which file the database follows, and what lets it follow this one."""
    mine, yours = tmp_path / "mine.yaml", tmp_path / "yours.yaml"
    mine.write_text(f"topics: {{{TOPIC}: {{retry: {{max_attempts: 3}}}}}}", "utf-8")
    yours.write_text("", "utf-8")
    assert run("policy", "apply", str(mine)).code == 0
    differing = run("policy", "diff", str(yours), "-o", "json")
    assert (differing.code, differing.json[0]["origin"]) == (1, f"file {mine}")
    refused = run("policy", "apply", str(yours))
    assert refused.code == 1
    assert f"follows the policy file {mine}" in refused.err
    assert "--take-over" in refused.err
    assert len(policies.list_policies(connection)) == 1
    assert run("policy", "apply", str(yours), "--take-over").code == 0
    assert policies.list_policies(connection) == []
    rows = run("policy", "history", "retry", "--topic", TOPIC, "-o", "json").rows
    assert [each["origin"] for each in rows] == [f"file {mine}", f"file {yours}"]


def test_a_policy_is_set_shown_and_cleared(run: Run) -> None:
    """By hand: the whole policy at once, for one thing."""
    where = ("--topic", TOPIC)
    given = ("max_attempts=3", "exhausted=park_key", "jitter=0.25")
    assert run("policy", "set", "retry", *given, *where).code == 0
    assert run("policy", "set", "retry", "max_attempts=4", *where).code == 0
    assert [row["settings"] for row in run("policy", "list", "-o", "json").rows] == [
        {"max_attempts": 4}
    ]
    shown = {row["setting"]: row for row in run("policy", "show", *where, "-o", "json").rows}
    assert (shown["max_attempts"]["value"], shown["max_attempts"]["source_name"]) == (4, TOPIC)
    assert (shown["exhausted"]["value"], shown["exhausted"]["source"]) == ("dead_letter", "preset")
    assert run("policy", "clear", "retry", *where).code == 0
    history = run("policy", "history", "retry", *where, "-o", "json").rows
    assert [row["version"] for row in history] == [1, 2, 3]
    assert {row["origin"] for row in history} == {"hand"}


def test_what_is_wrong_is_refused(run: Run) -> None:
    """With code 2, and nothing set."""
    for arguments in (
        ("set", "retry", "max_attempts"),
        ("set", "retry", "max_attempts=0"),
        ("set", "retry", "max_attempts=many"),
        ("set", "retry", "tries=3"),
        ("set", "retention", "copies=3"),
        ("set", "retry", "max_attempts=3", "--topic", TOPIC, "--namespace", "x"),
        ("set", "retry", "max_attempts=3", "--subscription", "nobody"),
        ("show", "--topic", "no/body"),
        ("history", "retention"),
    ):
        assert run("policy", *arguments).code == 2, arguments
    assert run("policy", "list", "-o", "json").rows == []
