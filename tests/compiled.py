"""Of a fresh checkout, each process of a run compiles a share of the tests.

pytest compiles a test anew with its own asserts, and keeps the result. All processes collect the
tests in the same order, so each of them would compile all of them: a third of a collection.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from _pytest.pathlib import ImportMode, import_path


def import_a_share(config: pytest.Config) -> None:
    """Import every n-th file of tests, where this is one of n processes and runs all of them."""
    worker: Mapping[str, Any] | None = getattr(config, "workerinput", None)
    if worker is None or config.args != config.getini("testpaths"):
        return
    number, processes = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    root = config.rootpath
    for path in sorted(root.glob("tests/**/test_*.py"))[number::processes]:
        try:
            import_path(
                path, mode=ImportMode.importlib, root=root, consider_namespace_packages=False
            )
        except (Exception, pytest.skip.Exception):
            _forget(path)  # the collection tells what is wrong


def _forget(path: Path) -> None:
    for name, module in [*sys.modules.items()]:
        if getattr(module, "__file__", None) == str(path):
            del sys.modules[name]
