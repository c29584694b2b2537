"""The code of the platform for Spark's workers: an archive that is made when it is needed."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
import weakref
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).resolve().parents[2]
#: What workers import, and where it lies in the archive: as in the wheel, SQL is a part of it.
_FOLDERS = {"penstock": "penstock", "ops": "ops", "sql": "penstock/sql"}
_KINDS = {".py", ".sql"}
#: The same code gives the same archive, so Spark takes it once.
_TIME = (2000, 1, 1, 0, 0, 0)

_shipped: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_shipping = threading.Lock()


def ship(spark: SparkSession) -> None:
    """Give the workers of a session this code; a second call does nothing.

    Workers of a local session are children of this process and find it on their PYTHONPATH.
    """
    with _shipping:
        if spark in _shipped:
            return
        is_remote = type(spark).__module__.startswith("pyspark.sql.connect")
        if is_remote:
            spark.addArtifacts(str(_archive()), pyfile=True)
        elif not _is_local(spark.sparkContext.master):
            spark.sparkContext.addPyFile(str(_archive()))
        _shipped.add(spark)


def _is_local(master: str | None) -> bool:
    return master is not None and (master == "local" or master.startswith("local["))


def _archive() -> Path:
    """The archive, in a folder that lasts as long as this process: workers come for it later."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = folder / "penstock_platform.zip"
    write_archive(place)
    return place


def write_archive(place: Path) -> None:
    """Write penstock, sql and ops into an archive that Python can import from."""
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, inside in _FOLDERS.items():
            for file in sorted((_ROOT / folder).rglob("*")):
                if file.suffix in _KINDS and file.is_file():
                    name = f"{inside}/{file.relative_to(_ROOT / folder).as_posix()}"
                    archive.writestr(zipfile.ZipInfo(name, _TIME), file.read_bytes())
