"""What a daemon is asked to run, checked before anything starts."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ops.commands.installation import Installation
from penstock.database import config
from penstock.errors import ConfigurationError
from penstock.upkeep import settings as shared
from penstock.upkeep.options import Effective, option, options_of
from penstock.upkeep.settings import ServiceSettings

#: What a daemon can do.
ROLES = ("sequencer", "sweep", "relay", "consumers", "queues", "gateway")

_NAMED: dict[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ServiceSettings):
    """The daemon's settings.  The dictionaries map a subscription to its handler or its sink."""

    url: str = field(repr=False)
    profile: str = option(
        "word",
        "balanced",
        "what the options below are for",
        words=("balanced", "latency", "throughput", "cost"),
    )
    database: str | None = option(
        "text", None, "a database of the policy file, by name; default: the environment's"
    )
    roles: tuple[str, ...] = option(
        "words", ("sequencer", "sweep"), "what the daemon does", words=ROLES
    )
    processes: int = shared.processes()
    consumers: dict[str, str] = option(
        "pairs", _NAMED, "SUBSCRIPTION=module:function, called with an event"
    )
    batch_consumers: dict[str, str] = option(
        "pairs", _NAMED, "the same, for functions that take a batch"
    )
    queues: dict[str, str] = option(
        "pairs", _NAMED, "QUEUE=module:function, called with a QueueDelivery"
    )
    relays: dict[str, str] = option("pairs", _NAMED, "SUBSCRIPTION=SINK, e.g. jsonl:folder")
    relay_at_once: int = option(
        "whole", 16, "partitions, or events of a queue, that a relay sends at once", 1, 256
    )
    relay_max_attempts: int | None = option(
        "whole",
        None,
        "then a block's events are dead letters; default: tried for ever",
        1,
        1_000_000,
    )
    consumer_id: str | None = option("text", None, "default: host, process, random")
    coordination: str | None = option(
        "text", None, "where consumers' leases live: etcd://, redis://; default: the database"
    )
    assign: str = option("text", "stealing", "with coordination: stealing or coordinated")
    weight: float = option(
        "number", 1.0, "the share of the partitions, against others'", 0.001, 1000
    )
    batch_size: int = option("whole", 500, "events of a poll", 1, 100_000)
    concurrency: int = option("whole", 1, "handlers at a time; each key in order", 1, 1000)
    handler_seconds: float | None = option(
        "number", None, "a handler that takes longer failed", 0.001, 86_400
    )
    idle_seconds: float = option("number", 0.5, "the longest rest of a consumer", 0.01, 60)
    visibility_seconds: float | None = option(
        "number",
        None,
        "how long an event of a queue is hidden; default: the queue's own",
        1,
        43_200,
    )
    prefetch: int | None = option(
        "whole", None, "events of a queue received ahead; default: as measured", 0, 10_000
    )
    sequencer_events: int = shared.sequencer_events()
    sweep_seconds: float = shared.sweep_seconds()
    waiting_seconds: float = shared.waiting_seconds()
    reconnects_per_second: float = shared.reconnects_per_second()

    def subscriptions(self) -> list[str]:
        """The subscriptions that are read.  One that is given twice is listed twice."""
        return [*self.consumers, *self.batch_consumers, *self.queues, *self.relays]

    def handlers(self) -> dict[str, str]:
        """The address of each handler.  A subscription that is given twice is refused elsewhere."""
        return self.consumers | self.batch_consumers | self.queues

    def to_json(self) -> str:
        """The settings for a child process, with the address of the database."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings that :meth:`to_json` wrote."""
        given = json.loads(text)
        return cls(**given | {"roles": tuple(given["roles"])})


def settings_of(chosen: Effective) -> Settings:
    """The settings, checked as far as possible without the database."""
    url = Installation(chosen.values["database"]).url
    settings = Settings(url=url, **chosen.values)
    _require_work(settings)
    for address in settings.handlers().values():
        load_handler(address)
    return settings


def shown(settings: Settings, chosen: Effective) -> str:
    """The effective configuration as YAML: each value with its source, and no secret."""
    lines = [f"# database: {config.redact(settings.url)}, schema {config.schema_name()}"]
    for name, value in chosen.values.items():
        lines.append(f"{name}: {json.dumps(_redacted(value))}  # {chosen.sources[name]}")
    return "\n".join(lines)


def _redacted(value: Any) -> Any:
    if isinstance(value, str):
        return config.redact(value)
    if isinstance(value, dict):
        return {name: config.redact(each) for name, each in value.items()}
    return value


def _require_work(settings: Settings) -> None:
    """Refuse options without their role, and roles without their options."""
    options = options_of(Settings)
    for role, name, given in (
        ("relay", "relays", settings.relays),
        ("consumers", "consumers", settings.consumers | settings.batch_consumers),
        ("queues", "queues", settings.queues),
    ):
        if (role in settings.roles) != bool(given):
            raise ConfigurationError(
                f"the role {role} goes together with the option {options[name].flag(name)}",
                hint=f"give both, or leave both out (roles: {', '.join(settings.roles)})",
            )
    given_names = settings.subscriptions()
    twice = sorted({name for name in given_names if given_names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"the subscription {twice[0]!r} is given twice",
            hint="each has one handler or one sink; give a second reader a subscription of its own",
        )
    if (settings.coordination or "").startswith("memory:") and settings.processes > 1:
        raise ConfigurationError(
            f"{settings.processes} processes cannot share leases in memory",
            hint="use etcd:// or redis:// for coordination, or one process",
        )
    if settings.processes > 1 and not given_names:
        raise ConfigurationError(
            f"{settings.processes} processes have nothing to share",
            hint="one is enough for sequencer and sweep; consumers, queues and relays are shared",
        )


def load_handler(address: str) -> Callable[..., Any]:
    """The function that ``module:function`` names."""
    module_name, found, attribute = address.partition(":")
    if not (module_name and found and attribute):
        raise ConfigurationError(f"handler {address!r} is not module:function")
    _import_from_here()
    try:
        handler = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a module may fail in any way while it is imported
        problem = (str(error).splitlines() or [""])[0]
        raise ConfigurationError(
            f"handler {address!r} cannot be loaded: {type(error).__name__}: {problem}",
            hint="the module must be importable where the daemon runs",
        ) from error
    if not callable(handler):
        raise ConfigurationError(f"handler {address!r} is not a function")
    return handler  # type: ignore[no-any-return]


def _import_from_here() -> None:
    """Import from the current folder, where handlers are.

    An installed command does not search it.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
