"""The one marker that a file of MySQL's functions may have, and the SQL that replaces it.

``{{on error: CALL undo_call()}}``, on a line of its own among the declarations, stands for a
handler.  When a statement fails, the handler makes this call and then raises the error again.
"""

from __future__ import annotations

import re

from penstock.errors import PenstockError

_MARKED = re.compile(r"^(?P<indent> *)\{\{on error: (?P<what>[^{}\n]+)\}\}$", re.MULTILINE)
_BRACES = re.compile(r"\{\{|\}\}")


def expanded(file: str, text: str) -> str:
    """The text with its handlers written out; PenstockError when a marker is not a handler."""
    whole = _MARKED.sub(_handler, text)
    unknown = _BRACES.search(whole)
    if unknown is None:
        return whole
    line = whole.count("\n", 0, unknown.start())
    raise PenstockError(
        f"{file}: there is no such marker: {whole.splitlines()[line].strip()}",
        hint="write {{on error: a statement; a statement}} on a line of its own",
    )


def _handler(found: re.Match[str]) -> str:
    statements = [f"    {each.strip()};" for each in found["what"].split(";")]
    lines = ["DECLARE EXIT HANDLER FOR SQLEXCEPTION", "BEGIN", *statements, "    RESIGNAL;", "END;"]
    return "\n".join(found["indent"] + line for line in lines)
