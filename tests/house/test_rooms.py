"""The rooms of penstock: what an import loads, which names there are, and no circle of files."""

from __future__ import annotations

import ast
import graphlib
import json
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import penstock

ROOT = Path(__file__).resolve().parents[2]
#: What a publisher has no use for.
LATER = ("asyncio", "typer", "rich", "psycopg", "pymysql", "penstock.consumer", "penstock.leases")


def _order(graph: dict[str, set[str]]) -> None:
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_no_file_imports_itself_by_way_of_others() -> None:
    packages = ("penstock", "ops", "consumers", "resources", "dagster_project")
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    found = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    assert len(found) > 200
    _order(found)
    with pytest.raises(graphlib.CycleError):  # a circle is seen
        _order(found | {"penstock.errors": {"penstock.consumer.consumer"}})


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
    assert names == set(penstock.__all__)
