"""Make the pages of reference that the code knows best: `python -m tools.reference_pages`.

commands.md has every command with its arguments and options, errors.md every error and what to do,
alerts.md every alert of `deploy/prometheus`. Other pages have tables that are made: of metrics,
options, policies, checks of the doctor and public names. With `--check` nothing is written.
"""

from __future__ import annotations

import ast
import logging
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
import yaml

import penstock
from consumers.gateway.answers import as_refused
from consumers.options import OPTIONS
from penstock import errors
from penstock.cli import over_http
from penstock.cli.root import root
from penstock.consumer.handlers.options import ConsumerOptions
from penstock.consumer.queue.options import QueueOptions
from penstock.driver_errors import HINTS
from penstock.errors import PenstockError, UsageError
from penstock.records import Message
from penstock.upkeep.metrics import METRICS, PREFIX
from tools import made, option_tables
from tools.error_advice import ADVICE

COMMAND = "tools.reference_pages"
RULES = made.ROOT / "deploy" / "prometheus" / "penstock.rules.yaml"

_COMMANDS = """\
# Every command

This page has the text of `--help` of each command. [cli.md](cli.md) has exit codes, the doctor, and
how the command finds its database. Words in capitals are arguments, those in brackets are optional.
A topic is written `namespace/path/topic`. Commands that show rows also take `--output table` or
`json` (`-o`)."""
_OVER_HTTP = """\
## Through a gateway

These take the place of the commands above when `penstock` works through an
[HTTP gateway](gateway.md)."""
_ERRORS = """\
# Every error

Each error says what was wrong and, in `hint`, what to do. All are classes of `penstock.errors` and
descend from `PenstockError`. An arrow marks a sub-class of the error above: catch either.

- **code**: the SQLSTATE, for programs that call the database's functions. On MySQL and MariaDB the
  number of the error is 31,000 more than the digits: PS010 is 31010.
- **HTTP**: the status with which the gateway answers.

A deadlock or a wait that took too long is the driver's own error: roll back and begin again."""
_USAGE = """\
## The call was wrong

`UsageError`: nothing was written. `penstock` ends with code 2."""
_FAILED = """\
## The call could not be done now

`penstock` ends with code 3."""
_ALERTS = """\
# Every alert

These are the alerts of
[deploy/prometheus/penstock.rules.yaml](../../deploy/prometheus/penstock.rules.yaml). `page` wakes
somebody, `warning` can wait until the morning. Begin each search with two commands:
`penstock status` shows the backlog and its holders, `penstock doctor` names faults and the commands
that mend them. [metrics.md](metrics.md) describes the metrics. The times of `publish` come
[from the application](metrics.md#in-your-application)."""


def commands(_: str) -> str:
    """The page of commands."""
    group = typer.main.get_command(root)
    context = typer.Context(group)
    names = group.list_commands(context)  # type: ignore[attr-defined]
    found = {name: group.get_command(context, name) for name in names}  # type: ignore[attr-defined]
    over = {name: over_http.load(name) for name in over_http.COMMANDS}
    return made.whole(
        COMMAND,
        _COMMANDS,
        *(part for name, each in found.items() for part in _of_group(name, each)),
        _OVER_HTTP,
        *(part for name, each in over.items() for part in _commands(f"penstock {name}", each)),
    )


def _of_group(name: str, command: Any) -> Iterator[str]:
    if hasattr(command, "commands"):
        yield f"## penstock {name}"
        yield made.lines(command.help or "")
    yield from _commands(f"penstock {name}", command)


def _commands(name: str, command: Any) -> Iterator[str]:
    """A command, or each of a group."""
    if hasattr(command, "commands"):
        for inner, each in command.commands.items():
            yield from _commands(f"{name} {inner}", each)
        return
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    yield f"{'#' * min(3, len(name.split()))} `{' '.join([name, *map(_argument, arguments)])}`"
    yield made.lines(command.help or "")
    rows = [_argument_row(each) for each in arguments if each.help not in _PATHS]
    rows += [_option(each) for each in command.params if _is_shown(each)]
    if rows:
        yield made.table(("option", "default", "meaning"), rows)


#: The help of arguments that are the same everywhere.
_PATHS = (None, "namespace/path/topic", "name/name/...")


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name += "..." if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def _argument_row(argument: Any) -> tuple[str, str, str]:
    return f"`{argument.metavar or argument.name.upper()}`", "", _prose(argument.help)


def _is_shown(option: Any) -> bool:
    is_of_all = "--output" in option.opts and option.help == "table or json"
    return option.param_type_name == "option" and not option.hidden and not is_of_all


def _option(option: Any) -> tuple[str, str, str]:
    names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
    preset = "required" if option.required else option_tables.default(option.default)
    return names, preset, f"{_prose(option.help)}{_bounds(option)}"


def _bounds(option: Any) -> str:
    """The numbers that an option may be, behind its meaning."""
    lowest, highest = getattr(option, "min", None), getattr(option, "max", None)
    if highest is not None:
        return f" ({lowest or 0:,} to {highest:,})"
    return f" (from {lowest:,})" if lowest else ""


def _prose(text: str | None) -> str:
    return " ".join((text or "").split())


def every_error(kind: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    """The errors of `penstock.errors` below a class, each before its sub-classes."""
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from every_error(each)


def error_page(_: str) -> str:
    """The page of errors."""
    logging.getLogger("penstock.gateway").addHandler(logging.NullHandler())
    found = [each for each in every_error() if each is not UsageError]
    wrong = [each for each in found if issubclass(each, UsageError)]
    failed = [each for each in found if not issubclass(each, UsageError)]
    return made.whole(COMMAND, _ERRORS, _USAGE, _error_table(wrong), _FAILED, _error_table(failed))


def _error_table(kinds: Sequence[type[PenstockError]]) -> str:
    return made.table(("error", "code", "HTTP", "meaning", "what to do"), map(_error_row, kinds))


def _error_row(kind: type[PenstockError]) -> tuple[str, ...]:
    depth = len([each for each in kind.__mro__ if issubclass(each, PenstockError)]) - 2
    depth -= issubclass(kind, UsageError)
    code = kind.__dict__.get("sqlstate") or ""
    advice = ADVICE.get(kind.__name__) or HINTS.get(code)
    if advice is None:
        raise made.Stale(f"tools/error_advice.py has no word of {kind.__name__}")
    return (
        f"{'↳ ' * depth}`{kind.__name__}`",
        code,
        _status(kind),
        _prose(kind.__doc__).replace("``", "`"),
        advice,
    )


def _status(kind: type[PenstockError]) -> str:
    refused = as_refused(kind(""))
    return str(refused.status) if refused else "500"


def alerts(_: str) -> str:
    """The page of alerts."""
    (group,) = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return made.whole(COMMAND, _ALERTS, *map(_alert, group["rules"]))


def _alert(rule: dict[str, Any]) -> str:
    about = {name: _linked(text) for name, text in rule["annotations"].items()}
    severity, lasts = rule["labels"]["severity"], rule.get("for", "0m")
    return "\n".join(
        (
            f"## {rule['alert']}\n",
            made.lines(f"{about['means']} (`{severity}`, after {lasts})\n"),
            "",
            made.lines(f"- Look: {about['look']}"),
            made.lines(f"- Mend: {about['mend']}"),
            f"\n```\n{rule['expr'].strip()}\n```",
        )
    )


def _linked(text: str) -> str:
    """A text of the rules, in which the name of a page is a link."""

    def link(found: re.Match[str]) -> str:
        path, name = found[1], Path(found[1]).name
        place = name if path.startswith("reference/") else f"../{path}"
        return f"[{name}]({place}{found[2] or ''})"

    return re.sub(r"\bdocs/([\w/-]+\.md)(#[\w-]+)?", link, _prose(text))


def metrics(page: str) -> str:
    """The page of metrics with its table."""
    rows = (
        (
            f"`{PREFIX}{name}{'_total' if about.kind == 'counter' else ''}`",
            about.kind,
            about.label,
            about.help,
        )
        for name, about in METRICS.items()
    )
    return made.fill(page, {"metrics": made.table(("metric", "type", "label", "meaning"), rows)})


def consumers(page: str) -> str:
    """The page of consumers with the table of their options."""
    return made.fill(page, {"options": option_tables.of_record(ConsumerOptions)})


def queue(page: str) -> str:
    """The page of queues with the table of a worker's options."""
    return made.fill(page, {"options": option_tables.of_record(QueueOptions)})


def publishing(page: str) -> str:
    """The page of publishing with the table of an event's options."""
    return made.fill(page, {"options": option_tables.of_record(Message)})


def daemon(page: str) -> str:
    """The page of the daemon with the table of its options."""
    return made.fill(page, {"options": option_tables.of_program(OPTIONS)})


def policies(page: str) -> str:
    """The page of policies with the tables of their settings."""
    return made.fill(
        page, {"policies": option_tables.policies(), "file": option_tables.policy_file()}
    )


def doctor(page: str) -> str:
    """The page of the command with the table of the doctor's checks."""
    return made.fill(page, {"checks": option_tables.checks()})


def names(page: str) -> str:
    """The page of stability with the public names of `penstock`."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(penstock.__all__):
        kinds.setdefault(_kind(getattr(penstock, name)), []).append(f"`{name}`")
    rows = ((kind, ", ".join(kinds[kind])) for kind in sorted(kinds))
    return made.fill(page, {"names": made.table(("kind", "names"), rows)})


def house(page: str) -> str:
    """The page for contributors with the folders of `penstock` and `ops`, and what each is."""
    project = tomllib.loads((made.ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["penstock"])
    inside = [name.strip(" ()") for layer in layers for name in layer.split("|")]
    ops = sorted(path.parent.name for path in (made.ROOT / "ops").glob("*/__init__.py"))
    return made.fill(page, {"penstock": _folders("penstock", inside), "ops": _folders("ops", ops)})


def _folders(package: str, names: Iterable[str]) -> str:
    rows = []
    for name in names:
        place = made.ROOT / package / name
        is_folder = place.is_dir()
        path = place / "__init__.py" if is_folder else place.with_suffix(".py")
        if not path.exists():  # a layer that may be there
            continue
        about = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        shown = f"`{name}/`" if is_folder else f"`{name}.py`"
        rows.append((shown, about.partition("\n")[0].replace("``", "`")))
    return made.table((f"in `{package}/`", "content"), rows)


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return "errors" if issubclass(value, PenstockError) else "classes"
    return "modules" if isinstance(value, ModuleType) else "functions"


PAGES = (
    made.Page("docs/reference/publishing.md", publishing),
    made.Page("docs/reference/consumers.md", consumers),
    made.Page("docs/reference/queue.md", queue),
    made.Page("docs/reference/policies.md", policies),
    made.Page("docs/reference/cli.md", doctor),
    made.Page("docs/reference/commands.md", commands),
    made.Page("docs/reference/errors.md", error_page),
    made.Page("docs/reference/alerts.md", alerts),
    made.Page("docs/reference/metrics.md", metrics),
    made.Page("docs/reference/daemon.md", daemon),
    made.Page("docs/reference/stability.md", names),
    made.Page("CONTRIBUTING.md", house),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write these pages, or compare them."""
    return made.main(COMMAND, PAGES, arguments)


if __name__ == "__main__":
    sys.exit(main())
