"""Re-make ``requirements.lock`` from pyproject.toml: pinned, with hashes, without any URL.

python -m tools.lock [--upgrade]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
HEADER = """\
# The platform's packages, pinned with hashes, for Python 3.11 to 3.13.
# Made by `make lock` from pyproject.toml; `make lock UPGRADE=1` takes the newest versions.
"""


def compile_lock(*, upgrade: bool) -> str:
    """What the lock should say now.  Versions that are locked already stay unless ``upgrade``."""
    command = [
        str(Path(sys.executable).parent / "uv"), "pip", "compile", "--quiet", "--universal",
        "--python-version", "3.11", "--generate-hashes", "--no-annotate", "--no-strip-extras",
        "--no-header", "--all-extras", "pyproject.toml", "-o", str(LOCK),
    ]  # fmt: skip
    if upgrade:
        command.append("--upgrade")
    subprocess.run(
        command, check=True, cwd=ROOT, env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    )
    return LOCK.read_text()


def main() -> int:
    """The command line."""
    text = compile_lock(upgrade="--upgrade" in sys.argv[1:])
    if "://" in text:
        print("error: the lock names an address; look at uv's configuration", file=sys.stderr)
        return 1
    LOCK.write_text(HEADER + text)
    print(f"{LOCK.name}: {text.count('==')} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
