"""Who a call is for: every place that asks for the login, or for what is restricted, is known."""

from __future__ import annotations

import re

import pytest

from penstock.database import catalog
from tests.kit.proof import proves

#: Functions that ask which login it is, because they are about logins.  All others ask principal().
OF_LOGINS = {
    "postgres": {
        *("passes_walls", "has_right", "acting_account", "principal", "plain_login"),
        *("own_gateway_problem", "refuse_act_as", "check_gateway"),
        *("publish", "publish_columns", "no_walls"),  # their plain case is not a gateway's
        "require_publisher",  # whether the login may call publish at all
    },
    "mysql": {
        *("passes_walls", "has_right", "roles_of_caller", "principal", "own_gateway_problem"),
        "refuse_serializable",
        "require_publisher",  # whether the login may call publish at all
    },
}
_LOGIN = {"postgres": r"\bsession_user\b", "mysql": r"(?<![A-Z_])(?:SESSION_)?USER\(\)"}

#: What an account is asked for wherever a shortcut of logins is taken.
_ASKED = {
    "postgres": re.compile(r"\b(?:as_login|no_walls|acting_account)\(\)|'penstock\.acting'"),
    "mysql": re.compile(r"@penstock_acting|\bacting_account\(\)"),
}
_WALLS = re.compile(r"\bnamespace_grants\b|\b\w+\.restricted\b")
#: Functions that read or write rights for no caller: what they do is the same for an account.
OF_NO_CALLER = {
    "is_restricted": "whether anybody has a right",
    "refresh_restricted": "writes the column",
    "give_right": "writes a right",
    "take_right": "removes a right",
    "grants_of": "asks has_right for each row",
    "delete_namespace": "removes the rights of what is gone",
    "describe_topic": "shows the column",
    "place_topic": "writes the column",
    "login_has_right": "asks for the login that is named",
    "account_has_right": "asks for the account that is named",
    "principal_may": "asks for the login or account that is named",
}


def _bodies(dialect: str) -> dict[str, str]:
    """Functions by name, without comments."""
    return {
        name: re.sub(r"--[^\n]*", "", body)
        for _, text in catalog.functions(dialect).files
        for name, body in catalog.blocks(text)
    }


@proves("S22 of accounts", how="every place that asks")
@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_only_what_is_about_logins_asks_for_the_login(dialect: str) -> None:
    """Ownership is the principal's: one login carries many accounts."""
    asking = {name for name, body in _bodies(dialect).items() if re.search(_LOGIN[dialect], body)}
    assert asking == OF_LOGINS[dialect]
    assert not re.search(_LOGIN[dialect], re.sub(r"--[^\n]*", "", catalog.tables(dialect)))


@proves("S22 of accounts", how="every place that asks")
@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_each_shortcut_is_for_logins_only(dialect: str) -> None:
    """Each function that reads `restricted` or the rights asks for whom, or does so for nobody."""
    reading = {name: body for name, body in _bodies(dialect).items() if _WALLS.search(body)}
    assert len(reading) > 30
    loose = {
        name
        for name, body in reading.items()
        if len(_ASKED[dialect].findall(body)) < _shortcuts(body) or not _ASKED[dialect].search(body)
    }
    assert loose - OF_NO_CALLER.keys() == set()


def _shortcuts(body: str) -> int:
    """How often it looks at whether a topic is restricted, other than to return or set it."""
    return len(re.findall(r"\b\w+\.restricted\b(?! = | <> |, t\.namespace_id,\n)", body))


@proves("S22 of accounts", guard="the second half of a shortcut")
@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_a_shortcut_without_its_second_half_is_found(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant."""
    bodies = _bodies(dialect)
    whole = {"postgres": " AND (SELECT as_login())", "mysql": " OR @penstock_acting IS NOT NULL"}
    bodies["require_topic_for"] = bodies["require_topic_for"].replace(whole[dialect], "")
    monkeypatch.setitem(globals(), "_bodies", lambda _: bodies)
    with pytest.raises(AssertionError):
        test_each_shortcut_is_for_logins_only(dialect)


#: Functions that write events and charge no account: a burial never fails because of its topic.
_UNCHARGED = {"forward_letters", "forward_letter"}
#: Those that call it are looked at.
_INNER = {"insert_packed"}
_CHARGE = {
    "postgres": r"acts_within_quota\(\) THEN\s+PERFORM charge_account\(|PERFORM charge_lines\(",
    "mysql": r"acts_within_quota\(\) THEN\s+(?:SELECT [^;]*;\s+)?CALL charge_account\("
    r"|CALL charge_lines\(",
}


@proves("quotas of accounts", how="every function that writes events")
@pytest.mark.parametrize("dialect", ["postgres", "mysql"])
def test_each_function_that_writes_events_charges_accounts_alone(dialect: str) -> None:
    """A way to publish without a quota would be the one that is used."""
    writing = {
        name: body
        for name, body in _bodies(dialect).items()
        if re.search(r"INSERT INTO events\s*\(|CALL insert_packed\(", body)
    }
    assert len(writing) > 4
    free = {name for name, body in writing.items() if not re.search(_CHARGE[dialect], body)}
    assert free - _INNER == _UNCHARGED & writing.keys()
