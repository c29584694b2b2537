"""Build the sdist and the wheel into ``dist/``, and let twine check them: `make release`.

What builds and checks is pinned in ``tools/release.lock`` and lies in ``.penstock/release``.  The
wheel is built from the unpacked sdist: so the sdist has all that it needs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from tools import figures

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "tools" / "release.lock"
HOME = ROOT / ".penstock" / "release"


class ReleaseError(Exception):
    """The release cannot be built.  The text says what failed."""


def build(target: Path) -> list[Path]:
    """The sdist and the wheel, checked."""
    python = _tools()
    shutil.rmtree(target, ignore_errors=True)
    _run(str(python), "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT))
    made = sorted(target.iterdir())
    _run(str(python), "-m", "twine", "check", "--strict", *map(str, made))
    return made


def _tools() -> Path:
    """The Python of the environment that builds and checks, made when its lock has changed."""
    python, stamp = HOME / "bin" / "python", HOME / ".complete"
    if not stamp.exists() or stamp.read_text() != LOCK.read_text():
        venv.create(HOME, clear=True)
        install(python, "--require-hashes", "-r", str(LOCK))
        stamp.write_text(LOCK.read_text())
    return python


def install(python: Path, *what: str) -> None:
    """Install into an environment that has no pip of its own."""
    _run(
        sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet",
        "--disable-pip-version-check", *what,
    )  # fmt: skip


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: the folder, else ``dist``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        made = build(Path(given[0]) if given else ROOT / "dist")
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sizes = {each.name: each.stat().st_size for each in made}
    for name, size in sizes.items():
        print(f"{name}: {size:,} bytes")
    figures.keep(
        "release", **{"wheel" if n.endswith(".whl") else "sdist": s for n, s in sizes.items()}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
