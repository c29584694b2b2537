"""The commands that hints of a command suggest can be run."""

from __future__ import annotations

import pytest

import penstock
from penstock.cli import main
from penstock.database import config
from penstock.subscriptions import stream
from tests.contract.databases import ContractDatabase

#: A command, and the option or command that its error names.
SAID: dict[str, tuple[list[str], str]] = {
    "namespace with topics": (["namespace", "delete", "shop", "--yes"], "give --with-topics"),
    "topic with readers": (["topic", "delete", "shop/a", "--yes"], "give --with-subscriptions"),
    "no namespace": (["topic", "create", "no/a"], "penstock namespace create PATH --parents"),
    "no topic": (["publish", "shop/b", "x"], "penstock topic create"),
    "no subscription": (
        ["subscription", "describe", "no"],
        "penstock subscription create NAME --topic TOPIC",
    ),
    "no partition": (["fetch", "shop/a", "--partition", "7"], "penstock topic describe"),
}


@pytest.mark.parametrize("case", SAID)
def test_the_hint_is_a_command_or_an_option(
    db: ContractDatabase,
    case: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guard: cli.hints; the database and Python speak of SQL and of arguments."""
    own = db.connect()
    penstock.create_topic(own, "shop/a", create_namespaces=True)
    stream.subscribe(own, "billing", ["shop/a"])
    monkeypatch.setenv(config.URL_VARIABLE, db.url)
    command, said = SAID[case]
    assert main.run(command) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "=>" not in told and "penstock." not in told and "SELECT" not in told
