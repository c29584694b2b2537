"""Hints in terms of the command: its options, not SQL and not Python."""

from __future__ import annotations

import re

from penstock.errors import PenstockError

#: By the text of the error.  Errors of MySQL and MariaDB have no hint.
_BY_MESSAGE = (
    (
        r'^the namespace ".*" holds ',
        "Delete them first, or give --with-topics: their events are lost.",
    ),
    (
        r" reads the topic",
        "Remove it first, or give --with-subscriptions: it reads on without the topic.",
    ),
    (
        r'^the namespace ".*" exists, and an account closes it',
        "Give --keep LOGIN:VERB for each right that stays, or --keep-nobody.",
    ),
    (
        r"^it is the last right in ",
        "Give the right to another login first, or give --unrestrict.",
    ),
    (
        r"^there is no subscription ",
        "Create it: penstock subscription create NAME --topic TOPIC (or penstock queue create).",
    ),
    (
        r"^there is no namespace ",
        "Create it: penstock namespace create PATH --parents, or penstock topic create with -p.",
    ),
)
_BY_HINT = (
    (r",? or (?:SELECT )?penstock\.create_topic\(\.\.\.\)", ""),
    (r"give one: partition=\.\.\.", "Give one: --partition."),
    (r"call penstock\.register_strategy\(.*\), or give a partition", "Give --partition."),
    (r"\(archive=targets\)", "(--target)"),
    (r"have archive=targets", "have archive targets (--target)"),
    (r"use seek to go back", "go back with penstock subscription seek"),
    (
        r"\bSubscribe it to the topic first\.",
        "penstock subscription create NAME --topic TOPIC adds it.",
    ),
    (
        r"\bCreate it: penstock\.(?:queue\.)?subscribe\(.*\.",
        "Create it: penstock subscription create NAME --topic TOPIC.",
    ),
)


def for_the_command(error: PenstockError) -> PenstockError:
    """The same error, with a hint that can be followed at a terminal."""
    hint = error.hint
    for pattern, said in _BY_MESSAGE:
        if re.search(pattern, error.message):
            hint = said
    for pattern, said in _BY_HINT:
        hint = re.sub(pattern, said, hint)
    error.hint = hint
    return error
