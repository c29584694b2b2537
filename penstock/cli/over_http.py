"""Which commands work through an HTTP gateway, and when they do."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any

from penstock.cli.commands import as_command
from penstock.errors import ConfigurationError
from penstock.http.address import URL_VARIABLE

#: Each has the name that it has with a database.  Names of topics are below the account.
COMMANDS = {
    "topic": "http_topics:topics",
    "queue": "http_queues:queues",
    "subscription": "http_topics:subscriptions",
    "dead-letter": "http_queues:dead_letters",
    "publish": "http_topics:publish",
    "fetch": "http_topics:fetch",
    "tail": "http_topics:tail",
    "consume": "http_topics:consume",
    "asyncapi": "asyncapi:asyncapi",
}


def is_meant() -> bool:
    """Whether the environment names a gateway and no database."""
    if not os.environ.get(URL_VARIABLE):
        return False
    from penstock.database import config

    return not config.is_configured()


@cache
def load(name: str) -> Any:
    """A command through the gateway."""
    if name not in COMMANDS:
        from penstock.database import config

        raise ConfigurationError(
            f"`penstock {name}` needs the database, and a gateway was named",
            hint=f"set {config.URL_VARIABLE}; over HTTP there are {', '.join(COMMANDS)}",
        )
    module, _, attribute = COMMANDS[name].partition(":")
    return as_command(name, getattr(import_module(f"penstock.cli.{module}"), attribute))
