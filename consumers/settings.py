"""What a daemon is asked to run, checked before anything starts."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from consumers.options import Effective, flag
from penstock.database import config
from penstock.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Settings:
    """The daemon's settings; the dictionaries map a subscription to what serves it."""

    url: str = field(repr=False)
    roles: tuple[str, ...]
    processes: int
    consumers: dict[str, str]
    batch_consumers: dict[str, str]
    relays: dict[str, str]
    consumer_id: str | None
    coordination: str | None
    assign: str
    weight: float
    batch_size: int
    concurrency: int
    handler_seconds: float | None
    idle_seconds: float
    sequencer_events: int
    sweep_seconds: float
    reconnects_per_second: float
    http_host: str
    http_port: int
    drain_seconds: float
    stuck_seconds: float
    log_level: str
    log_format: str

    def subscriptions(self) -> list[str]:
        """What is read; a subscription that is given twice is there twice."""
        return [*self.consumers, *self.batch_consumers, *self.relays]

    def to_json(self) -> str:
        """For a process that the daemon starts; the address of the database is in it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """What :meth:`to_json` wrote."""
        given = json.loads(text)
        return cls(**given | {"roles": tuple(given["roles"])})


def settings_of(chosen: Effective) -> Settings:
    """Checked as far as can be without the database."""
    names = {each.name for each in fields(Settings)}
    given = {name: value for name, value in chosen.values.items() if name in names}
    settings = Settings(url=config.database_url(), **given)
    _require_work(settings)
    for address in (settings.consumers | settings.batch_consumers).values():
        load_handler(address)
    return settings


def shown(settings: Settings, chosen: Effective) -> str:
    """The effective configuration as YAML, each value with who said so, and no secret."""
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
    """Options without their role, and roles without their options, are mistakes."""
    for role, given, option in (
        ("relay", settings.relays, flag("relays")),
        ("consumers", settings.consumers | settings.batch_consumers, flag("consumers")),
    ):
        if (role in settings.roles) != bool(given):
            raise ConfigurationError(
                f"the role {role} goes together with the option {option}",
                hint=f"give both, or leave both out (roles: {', '.join(settings.roles)})",
            )
    given_names = settings.subscriptions()
    twice = sorted({name for name in given_names if given_names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"the subscription {twice[0]!r} is given twice",
            hint="each has one handler or one sink; a second reader is a second subscription",
        )
    if (settings.coordination or "").startswith("memory:") and settings.processes > 1:
        raise ConfigurationError(
            f"{settings.processes} processes share no memory",
            hint="use etcd:// or redis:// for coordination, or one process",
        )
    if settings.processes > 1 and not given_names:
        raise ConfigurationError(
            f"{settings.processes} processes have nothing to share",
            hint="one is enough for the sequencer and the sweep; consumers and relays are shared",
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
    """Handlers lie where the daemon is started; an installed command does not look there."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
