"""The release after this one, made of this checkout: its files, its number, its command."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from penstock.database import catalog

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.2.0"
_MORE = "-- name: more\n-- For a test.\nALTER TABLE removals ADD COLUMN extra INT;\n"


@dataclass(frozen=True, slots=True)
class NextRelease:
    """Its package and its SQL."""

    folder: Path

    def penstock(self, url: str, *arguments: str) -> tuple[int, str]:
        """Its command: the exit code, and what it says."""
        code = "import sys; from penstock.cli.main import app; app()"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "DB_"))}
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=self.folder, text=True, check=False,
            capture_output=True, timeout=120,
            env=kept | {"PENSTOCK_DATABASE_URL": url, "PYTHONPATH": str(self.folder)},
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr


def next_release(folder: Path) -> NextRelease:
    """As CONTRIBUTING.md says: what the tables were is migration 1, the next one is 0002."""
    for each in ("penstock", "sql"):
        shutil.copytree(ROOT / each, folder / each)  # with what is compiled: it is quicker
    _replace(
        folder / "penstock" / "__init__.py", r'__version__ = "[^"]*"', f'__version__ = "{VERSION}"'
    )
    for dialect in ("postgres", "mysql"):
        home, known = folder / "sql" / dialect, catalog.migrations(dialect)
        (home / "migrations").mkdir(exist_ok=True)
        first = home / "migrations" / "0001_tables.sql"
        if not first.exists():  # as long as nothing was released
            first.write_text(known[0].text, "utf-8")
        more = home / "migrations" / f"{len(known) + 1:04d}_more.sql"
        more.write_text(_MORE, "utf-8")
        _replace(
            home / "subscriptions" / "tables.sql",
            r"(TABLE (?:IF NOT EXISTS )?removals \(.*?)(\n\))", r"\1,\n    extra INT\2",
        )  # fmt: skip
        _replace(home / "topics" / "topics.sql", r"(^-- name: list_topics\n)", r"\1-- Of 0.2.\n")
    return NextRelease(folder)


def _replace(path: Path, what: str, by: str) -> None:
    text, count = re.subn(
        what, by, path.read_text("utf-8"), count=1, flags=re.DOTALL | re.MULTILINE
    )
    assert count == 1, path
    path.write_text(text, "utf-8")
