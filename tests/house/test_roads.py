"""Roads: what is in `ops` is reached from a command, the daemon, Dagster or `penstock`.

What only tests reach is a second entrance to a verb: it rots, and the tests of it say nothing of
what ships.  The reach is read from the sources: who names what, by which import.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ops.duties.work import DUTIES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("penstock", "ops", "consumers", "resources", "dagster_project")

#: A module, and a name in it.
Place = tuple[str, str]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Names = Mapping[str, str | Place]


@functools.cache
def sources() -> dict[str, str]:
    """The source of each module by its name."""
    found = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = file.read_text("utf-8")
    return found


def entry_points() -> set[Place]:
    """What the wheel's metadata names: the commands among them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = [project.get("scripts", {}), *project["entry-points"].values()]
    texts = [text for group in groups for text in group.values() if isinstance(text, str)]
    return {(module, name) for module, _, name in (text.partition(":") for text in texts)}


class Roads:
    """Who reaches whom, by the names in the sources."""

    def __init__(self, code: Mapping[str, str], entries: set[Place]) -> None:
        self._trees = {module: ast.parse(text) for module, text in code.items()}
        self._graph: dict[Place, set[Place]] = {}
        self._starts = set(entries)
        self.defined: set[Place] = set()
        for module, tree in self._trees.items():
            self._add(module, tree)

    def unreached(self) -> list[str]:
        """The functions and classes of `ops` to which no road leads."""
        seen: set[Place] = set()
        todo = list(self._starts)
        while todo:
            place = todo.pop()
            if place not in seen:
                seen.add(place)
                todo += self._graph.get(place, ())
        return sorted(".".join(place) for place in self.defined - seen)

    def _add(self, module: str, tree: ast.Module) -> None:
        own = {name: (module, name) for statement in tree.body for name in _named(statement)}
        names = {**own, **self._imported(tree)}
        is_ops = module.partition(".")[0] == "ops"
        for statement in tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                continue
            reached = set(self._reached(statement, names))
            bound = _named(statement)
            if not is_ops or not bound or _is_command(module, statement):
                self._starts |= reached
            for name in bound:
                self._graph.setdefault((module, name), set()).update(reached)
            if is_ops and isinstance(statement, Definition):
                self.defined.add((module, statement.name))
                if _is_command(module, statement):
                    self._starts.add((module, statement.name))
        for name, place in self._imported(tree).items():  # who takes it from here has the other's
            if isinstance(place, tuple):
                self._graph.setdefault((module, name), set()).add(place)

    def _imported(self, node: ast.AST) -> dict[str, str | Place]:
        """What the imports of a module or of a function bind, those of inner functions left out."""
        found: dict[str, str | Place] = {}
        for each in _within(node):
            if isinstance(each, ast.ImportFrom) and each.module:
                for name in each.names:
                    whole = f"{each.module}.{name.name}"
                    place = whole if whole in self._trees else (each.module, name.name)
                    found[name.asname or name.name] = place
            elif isinstance(each, ast.Import):
                found |= {name.asname: name.name for name in each.names if name.asname}
        return found

    def _reached(self, node: ast.AST, names: Names) -> Iterator[Place]:
        """What a piece of code names, by the imports that hold there."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {**names, **self._imported(node)}
        if isinstance(node, ast.Name):
            place = names.get(node.id)
            if isinstance(place, tuple):
                yield place
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = names.get(node.value.id)
            if isinstance(module, str):
                yield module, node.attr
        for child in ast.iter_child_nodes(node):
            yield from self._reached(child, names)


def uncalled_methods(code: Mapping[str, str]) -> list[str]:
    """The methods of `ops` whose names nobody uses.

    By the name alone, so one whose name another class has too is not found.  What a class of Spark
    or of another library is asked for, its base calls.
    """
    used: set[str] = set()
    found: list[tuple[str, str]] = []
    for module, text in code.items():
        tree = ast.parse(text)
        bases = _foreign(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value)
            elif isinstance(node, ast.ClassDef) and _is_own(module, node, bases):
                methods = (each.name for each in node.body if isinstance(each, ast.FunctionDef))
                found += [(f"{module}.{node.name}", name) for name in methods]
    return [f"{owner}.{name}" for owner, name in found if name[:2] != "__" and name not in used]


def _is_own(module: str, node: ast.ClassDef, foreign: set[str]) -> bool:
    names = {each.id for each in node.bases if isinstance(each, ast.Name)}
    return module.partition(".")[0] == "ops" and foreign.isdisjoint(names)


def _foreign(tree: ast.Module) -> set[str]:
    """The names that a module imports from other libraries."""
    return {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module
        and node.module.partition(".")[0] not in PACKAGES
        for each in node.names
    }


def _within(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _within(child)


def _named(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module binds."""
    if isinstance(statement, Definition):
        return [statement.name]
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return []
    stores = (each for each in ast.walk(statement) if isinstance(each, ast.Name))
    return [each.id for each in stores if isinstance(each.ctx, ast.Store)]


def _is_command(module: str, statement: ast.stmt) -> bool:
    """Whether a decorator makes it a command."""
    return (
        module.startswith("ops.commands.")
        and isinstance(statement, ast.FunctionDef)
        and bool(statement.decorator_list)
    )


def test_every_function_and_class_of_ops_is_reached() -> None:
    roads = Roads(sources(), entry_points())
    assert len(roads.defined) > 500
    assert roads.unreached() == []


def test_every_method_of_ops_is_used() -> None:
    assert uncalled_methods(sources()) == []
    more = "class One:\n    def used(self): self.used()\n    def forgotten(self): pass"
    assert uncalled_methods({"ops.one": more}) == ["ops.one.One.forgotten"]


def test_somebody_makes_the_units_of_every_duty() -> None:
    """The table of duties names each function, so the sources say nothing of it."""
    made = re.findall(r'DutyUnit\(\s*"([a-z ]+)"', "".join(sources().values()))
    assert DUTIES.keys() - set(made) == set()


REACHED = {
    "ops.seal": "def seal(): _cut()\ndef _cut(): pass\nclass Sealed: pass",
    "ops.copies": "from ops.seal import Sealed as Sealed",
    "ops.commands.one": (
        "import typer\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def one():\n    from ops.seal import seal as verb\n    verb()\n"
        "def two():\n    from ops.clean import clean as verb\n    verb()\n"
    ),
    "ops.clean": "from ops import copies\ndef clean():\n    return copies.Sealed()",
    "dagster_project.jobs": "",
}
ENTRIES = {("ops.commands.one", "two")}


def test_commands_reach_what_they_name() -> None:
    """Also by the same name in two functions, and by way of a module that passes a name on."""
    assert Roads(REACHED, ENTRIES).unreached() == []


@pytest.mark.parametrize(
    ("module", "more", "found"),
    [
        ("ops.seal", "def forgotten(): pass", ["ops.seal.forgotten"]),
        ("ops.seal", "class Forgotten: pass", ["ops.seal.Forgotten"]),
        ("ops.seal", "def a(): b()\ndef b(): a()", ["ops.seal.a", "ops.seal.b"]),
        ("ops.seal", "def a(): seal()\nUSED = a", ["ops.seal.a"]),
        ("ops.commands.one", "def three(): pass", ["ops.commands.one.three"]),
        # The name that it has in another function is that one's.
        (
            "ops.copies",
            "def _count(): pass\ndef count():\n    from ops.seal import seal as _count\n",
            ["ops.copies._count", "ops.copies.count"],
        ),
        ("dagster_project.jobs", "from ops.seal import seal\nseal()", []),
    ],
)
def test_what_no_road_leads_to_is_found(module: str, more: str, found: list[str]) -> None:
    code = REACHED | {module: f"{REACHED[module]}\n{more}"}
    assert Roads(code, ENTRIES).unreached() == found


def test_without_a_command_its_verb_is_found() -> None:
    assert Roads(REACHED, set()).unreached() == [
        "ops.clean.clean",
        "ops.commands.one.two",
        "ops.seal.Sealed",
    ]
