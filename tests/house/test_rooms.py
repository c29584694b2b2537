"""The folders of penstock: what an import loads, which names exist, and no circle of imports."""

from __future__ import annotations

import ast
import graphlib
import inspect
import json
import pkgutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import grimp
import pytest

import penstock
from penstock.consumer.stream.consumer import Consumer

ROOT = Path(__file__).resolve().parents[2]
#: What a publisher has no use for.
LATER = (
    *("asyncio", "typer", "rich", "psycopg", "pymysql", "asyncpg", "sqlalchemy"),
    *("pyarrow", "deltalake", "pyspark", "penstock.archive", "penstock.spark"),
    *("penstock.consumer", "penstock.leases"),
)


def _order(graph: dict[str, set[str]]) -> None:
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_no_file_imports_itself_by_way_of_others() -> None:
    packages = ("penstock", "ops", "consumers", "resources", "dagster_project")
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    found = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    assert len(found) > 200
    _order(found)
    with pytest.raises(graphlib.CycleError):  # a circle is seen
        _order(found | {"penstock.errors": {"penstock.consumer.stream.consumer"}})


def _loaded_by(code: str) -> set[str]:
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("code", ["import penstock", "import penstock\npenstock.publish"])
def test_a_publisher_loads_neither_consumer_nor_driver(code: str) -> None:
    assert _loaded_by(code).isdisjoint(LATER)


def test_a_consumer_loads_what_it_needs() -> None:
    assert not _loaded_by("import penstock\npenstock.Consumer").isdisjoint(LATER)


def test_every_public_name_is_there() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert set(penstock.__all__) <= set(dir(penstock))
    with pytest.raises(AttributeError, match="no_such_name"):
        penstock.no_such_name  # noqa: B018


def test_the_names_for_type_checkers_are_the_public_ones() -> None:
    tree = ast.parse((ROOT / "penstock" / "__init__.py").read_text())
    (typed,) = (each for each in tree.body if isinstance(each, ast.If))
    imports = (each for each in typed.body if isinstance(each, ast.ImportFrom))
    names = {alias.asname for each in imports for alias in each.names}
    assert names == set(penstock.__all__) - {"preload"}  # which is defined there


def _classes(package: str) -> Iterator[type]:
    root = import_module(package)
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not found.name.endswith("__main__"):
            module = import_module(found.name)
            own = (each for each in vars(module).values() if isinstance(each, type))
            written = (each for each in own if "[" not in each.__name__)  # else pydantic made it
            yield from (each for each in written if each.__module__ == module.__name__)


def _homes(packages: Iterable[str]) -> dict[str, list[str]]:
    """The files that define a class of each name."""
    found: dict[str, list[str]] = {}
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            for each in ast.parse(path.read_text()).body:
                if isinstance(each, ast.ClassDef):
                    found.setdefault(each.name, []).append(str(path.relative_to(ROOT)))
    return found


def test_a_class_name_has_one_home() -> None:
    """Whoever searches for a class finds one; so its name says whose it is."""
    homes = _homes(("penstock", "ops", "consumers", "resources", "dagster_project"))
    assert len(homes) > 400
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
    assert len(_homes(("penstock", "penstock/log"))["Gap"]) == 2  # a second one is seen


def _has_state(found: type) -> bool:
    """Whether the class itself says that its instances have a field, or gives them one."""
    if getattr(found, "_is_protocol", False):
        return False
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(tree, ast.ClassDef)
    for each in tree.body:
        if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each.annotation):
            return True
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__slots__":
            return ast.unparse(each.value) != "()"
    stored = (
        each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    )
    return any(isinstance(each, ast.Name) and each.id == "self" for each in stored)


def _standing_on_many(ours: Iterable[type]) -> dict[str, list[str]]:
    """Classes that stand on more than one of ours that has state, and which these are."""
    with_state = {each for each in ours if _has_state(each)}
    found = {
        each.__name__: [above.__name__ for above in each.__mro__[1:] if above in with_state]
        for each in ours
    }
    return {name: above for name, above in found.items() if len(above) > 1}


def test_no_class_stands_on_two_that_have_state() -> None:
    """What a method of an object works with is in its class, in one above, or has a name."""
    ours = {each for name in ("penstock", "ops", "consumers") for each in _classes(name)}
    assert len(ours) > 250
    assert _standing_on_many(ours) == {}

    class Planted(Consumer):
        """One level too many: a third one would have to be read with it."""

    assert _standing_on_many(ours | {Planted})["Planted"] == ["Consumer", "Rounds"]
