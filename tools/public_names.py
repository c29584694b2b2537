"""Write down what `penstock` offers to Python: names, signatures, fields, errors.

`python -m tools.public_names` writes ``tests/release/public_names.txt``, and a test compares it.
So a break of what docs/reference/stability.md promises is seen in the change that makes it.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import penstock

FILE = Path(__file__).resolve().parents[1] / "tests" / "release" / "public_names.txt"
#: Public, and not bound in `penstock` itself.
BESIDE = ("penstock.http", "penstock.spark", "penstock.dagster")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_OWN = "penstock"
#: Of errors, whose line has them, and of pydantic.
_OF_THE_MAKER = frozenset({"sqlstate", "lasts", "model_config"})


def lines() -> list[str]:
    """A line for each name."""
    return list(_all())


def _all() -> Iterator[str]:
    modules = {}
    for name in penstock.__all__:
        found = getattr(penstock, name)
        if inspect.ismodule(found):
            modules[f"penstock.{name}"] = found
        else:
            yield from described(f"penstock.{name}", found)
    for place, module in (modules | {each: import_module(each) for each in BESIDE}).items():
        for name in _names(module):
            yield from described(f"{place}.{name}", getattr(module, name))


def _names(module: Any) -> list[str]:
    """What a module lists, else what it defines, or imports from its own folder."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    return sorted(
        name
        for name, found in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(found) or inspect.isfunction(found))
        and f"{found.__module__}.".startswith(f"{module.__name__}.")
    )


def described(place: str, found: Any) -> Iterator[str]:
    """A function with its signature; a class with what it has, and an error with what it is."""
    if not inspect.isclass(found):
        yield f"{place}{_signature(found)}" if callable(found) else f"{place} = {found!r}"
        return
    if issubclass(found, Exception):
        base = next(each.__name__ for each in found.__mro__[1:])
        yield f"{place}({base}) {getattr(found, 'sqlstate', None) or ''}".rstrip()
    else:
        yield f"{place}{_signature(found)}"
    yield from (f"{place}.{each}" for each in _members(found))


def _members(found: type) -> list[str]:
    """Methods, properties and fields of a class that are its own or those of a base of ours."""
    own: dict[str, str] = {}
    for base in reversed(found.__mro__):
        if base.__module__.partition(".")[0] != _OWN or base.__name__.startswith("_"):
            continue
        if dataclasses.is_dataclass(base):
            own |= {each.name: "" for each in dataclasses.fields(base)}
        for name, value in vars(base).items():
            if name.startswith("_"):
                continue
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            own[name] = _signature(value) if inspect.isfunction(value) else ""
    return [f"{name}{told}" for name, told in sorted(own.items()) if name not in _OF_THE_MAKER]


def _signature(found: Any) -> str:
    """Without types: what a program breaks on is a name, an order or a default."""
    try:
        whole = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    empty = inspect.Parameter.empty
    bare = [each.replace(annotation=empty) for each in whole.parameters.values()]
    told = whole.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    return _ADDRESS.sub("", str(told))


def main(arguments: list[str]) -> int:
    """Write the file; with ``--check`` only say whether it is as it should be."""
    text = "".join(f"{each}\n" for each in lines())
    if "--check" in arguments:
        return int(FILE.read_text("utf-8") != text)
    FILE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
