"""Re-make the locks from pyproject.toml: pinned, with hashes, without any URL.

``requirements.lock`` has everything that a checkout needs. The others have what an image and
`make release` need, in the same versions.

python -m tools.lock [--upgrade]
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
#: The groups of pyproject.toml that have a lock of their own.
GROUPS = {
    "service": ROOT / "deploy" / "service.lock",
    "platform": ROOT / "deploy" / "platform.lock",
    "release": ROOT / "tools" / "release.lock",
}
_HEADER = """\
# The packages of {what}, pinned with hashes, for Python 3.11 to 3.13.
# Made by `make lock` from pyproject.toml; `make lock UPGRADE=1` takes the newest versions.
"""


def compile_lock(target: Path, *choice: str) -> str:
    """What a lock should say now.  Versions that it has stay, unless the choice says --upgrade."""
    command = [
        str(Path(sys.executable).parent / "uv"), "pip", "compile", "--quiet", "--universal",
        "--python-version", "3.11", "--generate-hashes", "--no-annotate", "--no-strip-extras",
        "--no-header", *choice, "-o", str(target),
    ]  # fmt: skip
    subprocess.run(
        command, check=True, cwd=ROOT, env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    )
    return target.read_text()


def _write(target: Path, what: str, choice: Sequence[str]) -> None:
    text = compile_lock(target, *choice)
    if "://" in text:
        sys.exit(f"error: {target.name} names an address; look at uv's configuration")
    target.write_text(_HEADER.format(what=what) + text)
    print(f"{target.name}: {text.count('==')} packages")


def main() -> int:
    """The command line."""
    upgrade = [each for each in sys.argv[1:] if each == "--upgrade"]
    everything = ["pyproject.toml", "--all-extras", "--group", "pyproject.toml:dev"]
    _write(LOCK, "a checkout", [*everything, *upgrade])
    for name, target in GROUPS.items():
        choice = ["--group", name, "--constraint", LOCK.name, *upgrade]
        _write(target, f"the group {name}", choice)
    return 0


if __name__ == "__main__":
    sys.exit(main())
