"""The settings of every long-running program, and those of ``penstock upkeep``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from penstock.upkeep.options import chosen, from_environment, from_flags, option, options_of

PREFIX = "PENSTOCK_UPKEEP_"
WORKER_PREFIX = "PENSTOCK_WORKER_"

# The daemon has these too.
sequencer_events = partial(option, "whole", 10_000, "events of a pass", 1, 1_000_000)
sweep_seconds = partial(option, "number", 5.0, "between two looks for dead consumers", 0.1, 3600)
waiting_seconds = partial(
    option, "number", 10.0, "without a pass for longer, /readyz is 503", 0.1, 86_400
)
reconnects_per_second = partial(
    option, "number", 2.0, "attempts to connect again, of all processes", 0.1, 1000
)
processes = partial(
    option, "whole", 0, "processes for the work, started again when they die; 0: this one", 0, 64
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Where the pages are, how the program ends and what it logs."""

    http_host: str = option("text", "127.0.0.1", "where /livez, /readyz and /metrics listen")
    http_port: int = option("whole", 0, "0: any free port; the log names it", 0, 65_535)
    drain_seconds: float = option(
        "number", 30.0, "how long SIGTERM waits for work in hand", 0, 86_400
    )
    stuck_seconds: float = option(
        "number", 300.0, "a batch that takes longer turns /livez to 503", 1, 86_400
    )
    log_level: str = option(
        "word", "info", "what is logged", words=("debug", "info", "warning", "error")
    )
    log_format: str = option("word", "json", "how it is written", words=("json", "text"))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepSettings(ServiceSettings):
    """How the upkeep sequences events and finds dead consumers."""

    sequencer_events: int = sequencer_events()
    sweep_seconds: float = sweep_seconds()
    waiting_seconds: float = waiting_seconds()
    reconnects_per_second: float = reconnects_per_second()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(ServiceSettings):
    """Where the handlers of an application run."""

    processes: int = processes()


def upkeep_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> UpkeepSettings:
    """The settings of ``penstock upkeep``.  A ConfigurationError names what is wrong."""
    options = options_of(UpkeepSettings)
    given = {
        "flag": from_flags(options, flags),
        "environment": from_environment(options, PREFIX, environ),
    }
    return UpkeepSettings(**chosen(options, given).values)


def worker_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> WorkerSettings:
    """The same for ``penstock worker``."""
    options = options_of(WorkerSettings)
    given = {
        "flag": from_flags(options, flags),
        "environment": from_environment(options, WORKER_PREFIX, environ),
    }
    return WorkerSettings(**chosen(options, given).values)
