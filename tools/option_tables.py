"""Tables of options for the pages of reference: fields of records, policies, checks of the doctor.

A field's meaning is the comment above it: `#: ...`. Fields one below the other share it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from dataclasses import MISSING
from enum import Enum
from typing import Any

from ops.policies import settings
from ops.policies.settings import FileSetting
from ops.policies.values import SECONDS
from penstock.doctor.checks import CHECKS, Check
from penstock.subscriptions.policies import SETTINGS
from penstock.upkeep.options import Option
from tools import made

#: The records of the policy file, by their places in it.
SECTIONS = {
    "targets.NAME": settings.TargetSettings,
    "topics.NAME.seal": settings.SealPolicy,
    "topics.NAME.archive": settings.ArchiveSettings,
    "topics.NAME.retention": settings.RetentionPolicy,
    "relays.NAME": settings.RelayPolicy,
    "relay_groups.NAME": settings.RelayGroupPolicy,
    "subscriptions.NAME": settings.SubscriptionSettings,
    "limits": settings.HealthLimits,
}
#: What the reader of the file takes from elsewhere where it does not say it.
_TAKEN = {
    "topics.NAME.archive.targets": "required",
    "topics.NAME.archive.copies": "one on each target",
    "topics.NAME.archive.ack_quorum": "as many as copies",
    "relays.NAME.subscription": "the relay's name",
    "relay_groups.NAME.ack_quorum": "all of them",
}


def default(value: Any) -> str:
    """A preset as a page shows it; an empty text where there is none."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or value == "" or value is False or callable(value):
        return ""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if value is True:
        return "yes"
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if _is_int(value) else value


def _is_int(value: object) -> bool:
    return isinstance(value, int)


def comments(record: type) -> dict[tuple[str, ...], str]:
    """The comment above the fields of a record, by their names."""
    source = textwrap.dedent(inspect.getsource(record))
    lines = source.splitlines()
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[tuple[str, ...], str] = {}
    last = -1
    for node in definition.body:
        if not isinstance(node, ast.AnnAssign):
            continue
        assert isinstance(node.target, ast.Name)
        above = node.lineno - 2
        said: list[str] = []
        while lines[above].startswith("    #:"):
            said.insert(0, lines[above].removeprefix("    #:").strip())
            above -= 1
        if said:
            found[(node.target.id,)] = " ".join(said)
        elif found and node.lineno == last + 1:
            names, meaning = found.popitem()
            found[(*names, node.target.id)] = meaning
        last = node.end_lineno or node.lineno
    return found


def of_record(record: Any) -> str:
    """The options that the fields of a record are."""
    presets = {each.name: each.default for each in dataclasses.fields(record)}
    rows = []
    for names, meaning in comments(record).items():
        shown = [default(presets[name]) or "none" for name in names]
        is_set = any(each != "none" for each in shown)
        rows.append(
            (", ".join(f"`{each}`" for each in names), "; ".join(shown) if is_set else "", meaning)
        )
    return made.table(("option", "default", "meaning"), rows)


def of_program(options: dict[str, Option]) -> str:
    """The options of a long-running program."""
    rows = (
        (f"`{name}`", _preset(each), _allowed(each), each.about) for name, each in options.items()
    )
    return made.table(("option", "default", "may be", "meaning"), rows)


def _preset(option: Option) -> str:
    return str(option.default) if option.default == 0 else default(option.default or None) or "none"


def _allowed(option: Option) -> str:
    """The values that an option may have; without one where the kind of value says all."""
    if option.words:
        return ", ".join(option.words)
    return f"{option.lowest:,} to {option.highest:,}" if option.highest else ""


def policies() -> str:
    """The settings of policies in the database."""
    rows = [
        (
            kind,
            f"`{name}`",
            str(each.preset) if each.words else f"{each.preset:,}",
            ", ".join(each.words) or f"{each.range.lowest:,} to {each.range.highest:,}",
            each.about,
        )
        for kind, of_kind in SETTINGS.items()
        for name, each in of_kind.items()
    ]
    return made.table(("policy", "setting", "unset", "may be", "meaning"), rows)


def policy_file() -> str:
    """The settings that only the policy file has."""
    rows = []
    for place, record in SECTIONS.items():
        said = {name: meaning for names, meaning in comments(record).items() for name in names}
        for name, (field, setting, unset) in settings.table(record).items():
            taken = _TAKEN.get(f"{place}.{name}") or _unset(setting, unset)
            rows.append((f"`{place}`", f"`{name}`", taken, setting.value.form, said[field]))
    return made.table(("in the file", "setting", "unset", "may be", "meaning"), rows)


def _unset(setting: FileSetting, unset: Any) -> str:
    if unset is MISSING:
        return "required"
    if setting.value is SECONDS and unset:
        minutes, seconds = divmod(unset, 60)
        return f"{unset}s" if seconds else f"{minutes}m"
    return default(unset or None) or "none"


def checks() -> str:
    """The checks of the doctor; neighbours that find the same in the same place share a row."""
    together: dict[Check, list[str]] = {}
    for name, check in CHECKS.items():
        together.setdefault(check, []).append(f"`{name}`")
    rows = ((", ".join(names), check.found_when, check.on) for check, names in together.items())
    return made.table(("check", "found when", "on"), rows)
