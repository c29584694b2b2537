"""No hint that a command can show names SQL or an argument of Python."""

from __future__ import annotations

import re

from penstock.cli.hints import for_the_command
from penstock.database import catalog
from penstock.driver_errors import HINTS
from penstock.errors import PenstockError

#: A call of SQL or Python, or a named argument.
_CODE = re.compile(r"=>|\bSELECT\b|\bpenstock\.\w|\b\w+\(|\w=(?!\w*//)")
_REFUSED = re.compile(r"refuse\(\s*'PS\d{3}',(.*?)\);", re.DOTALL)
_TEXT = re.compile(r"'((?:[^']|'')*)'")
#: No command makes these calls.
NO_COMMAND = ("prepare_bulk()", "settings_of()", "policy_of()")


def hints() -> list[PenstockError]:
    """What the functions of PostgreSQL say, and what stands in for it on MySQL and MariaDB."""
    found = [PenstockError("an error", hint=hint) for hint in HINTS.values()]
    for _, text in catalog.functions("postgres").files:
        for refused in _REFUSED.findall(text):
            texts = _TEXT.findall(refused)
            message, hint = texts[0], texts[-1] if len(texts) > 1 else ""
            found.append(PenstockError(message.replace("%s", "x"), hint=hint))
    return found


def test_every_hint_is_in_the_words_of_the_command() -> None:
    found = hints()
    assert len(found) > 80
    left = [
        said
        for error in found
        if _CODE.search(said := for_the_command(error).hint)
        and not any(each in said for each in NO_COMMAND)
    ]
    assert not left


def test_without_the_table_some_are_not() -> None:
    """Mutant: the hints as the database gives them."""
    assert sum(bool(_CODE.search(error.hint)) for error in hints()) > 5
