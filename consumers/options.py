"""Where the daemon's options come from: a flag, the environment, a file, a profile, the default.

The first of these that names an option decides it. An unknown key in the file, an unknown variable
``PENSTOCK_DAEMON_...`` and a value out of range are always refused, also when another source would
decide the option.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from consumers.settings import Settings
from ops.policies import yaml_file
from penstock.errors import ConfigurationError
from penstock.upkeep.options import (
    Effective,
    Value,
    chosen,
    from_environment,
    from_flags,
    options_of,
    unknown,
)

PREFIX = "PENSTOCK_DAEMON_"
FILE = f"{PREFIX}CONFIG"
OPTIONS = options_of(Settings)

#: Each profile, and its values in place of the defaults. docs/reference/daemon.md has its policies.
PROFILES: dict[str, dict[str, Value]] = {
    "balanced": {},
    "latency": {
        "batch_size": 100, "idle_seconds": 0.1, "sequencer_events": 2_000, "sweep_seconds": 2.0,
    },
    "throughput": {
        "batch_size": 1_000, "idle_seconds": 0.5, "sequencer_events": 50_000, "sweep_seconds": 5.0,
    },
    "cost": {
        "batch_size": 500, "idle_seconds": 5.0, "sequencer_events": 10_000, "sweep_seconds": 30.0,
    },
}  # fmt: skip


def effective(flags: Mapping[str, object], environ: Mapping[str, str] | None = None) -> Effective:
    """Every option's value.  ``flags`` are the options given on the command line."""
    environ = os.environ if environ is None else environ
    path = flags.get("config") or environ.get(FILE, "").strip()
    found = chosen(
        OPTIONS,
        {
            "flag": from_flags(OPTIONS, flags),
            "environment": from_environment(OPTIONS, PREFIX, environ, FILE),
            "file": _from_file(Path(str(path))) if path else {},
        },
    )
    values, sources = found.values, found.sources
    for name, value in PROFILES[values["profile"]].items():
        if sources[name] == "default":
            values[name], sources[name] = value, f"profile {values['profile']}"
    return found


def _from_file(path: Path) -> dict[str, Value]:
    hint = f"give another with --config or {FILE}"
    content = yaml_file.parse(yaml_file.read(path, "the daemon's file", hint), path.name)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{path.name} is not a table", hint="write one `option: value` a line"
        )
    found = {}
    for key, value in content.items():
        if key not in OPTIONS:
            raise unknown(f"{path.name}: the option", str(key), OPTIONS)
        if value is not None:
            found[key] = OPTIONS[key].read(value, f"{path.name}: {key}")
    return found
