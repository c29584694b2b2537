"""The figures of the project: `make figures`.

Words, prose, lines, and promises are counted now.  Sizes and the time of the tests are those of the
last release, of the last images, and of the last whole `make test`, which leave them in
``.penstock/figures``.
"""

from __future__ import annotations

import json
import time
import tomllib
from pathlib import Path
from typing import Any

from tools import lines_of_tests, prose, words

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".penstock" / "figures"


def keep(name: str, **figures: Any) -> None:
    """Leave what was measured, with the time of now."""
    KEPT.mkdir(parents=True, exist_ok=True)
    at = time.strftime("%Y-%m-%d %H:%M")
    (KEPT / f"{name}.json").write_text(json.dumps({"at": at} | figures), "utf-8")


def kept(name: str, command: str) -> str:
    """What was left under a name, else the command that leaves it."""
    path = KEPT / f"{name}.json"
    if not path.exists():
        return f"not measured here: {command}"
    found = json.loads(path.read_text("utf-8"))
    at = found.pop("at")
    told = (f"{k} {v:,}" if isinstance(v, int) else f"{k} {v}" for k, v in found.items())
    return f"{', '.join(told)} ({at})"


def promises() -> str:
    """How many there are, by the groups of their table."""
    table = tomllib.loads((ROOT / "tests" / "promises.toml").read_text("utf-8"))
    return ", ".join(f"{len(group)} {name}" for name, group in table.items() if len(group) > 1)


def main() -> int:
    """Print them."""
    words.main()
    prose.main([])
    print(*lines_of_tests.told(lines_of_tests.lines()), sep="\n")
    print(f"promises: {promises()}")
    print(f"last `make test`: {kept('test', 'make test')}")
    print(f"last `make test-long`: {kept('test-long', 'make test-long')}")
    print(f"release: {kept('release', 'make release')}")
    print(f"images: {kept('images', 'make test-long ARGS=tests/release/test_images.py')}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
