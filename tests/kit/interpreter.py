"""A Python for Spark's workers that does not find the checkout."""

from __future__ import annotations

import venv
from pathlib import Path

import pyspark


def bare_interpreter(folder: Path) -> Path:
    """A Python with all packages of this one but Penstock, whose link to the checkout is a .pth."""
    venv.create(folder, symlinks=True)
    (place,) = folder.glob("lib/python3*/site-packages")
    (place / "packages.pth").write_text(f"{Path(pyspark.__file__).parents[1]}\n")
    return folder / "bin" / "python"
