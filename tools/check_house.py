"""The house rules that no other tool checks, over every file that git tracks.

- no function longer than 70 lines, no file of code longer than 500;
- no path of one machine, no address of a package registry;
- no mark of a merge that was not finished;
- no ``uv.lock`` (it names registries), no Dagster settings in pyproject.toml (they switch
  workspace.yaml off);
- every block of SQL has a name, and a comment that explains it;
- no line of Markdown longer than 100 characters, except in tables, code and addresses of links.

Run it as ``python -m tools.check_house``; it exits with 1 and names every fault.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

LONGEST_FUNCTION = 70
LONGEST_FILE = 500
LONGEST_LINE = 100
CODE = {".py", ".sql", ".sh"}

# Put together from pieces, so that this file does not find itself.
FOLDERS = "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me"])
MACHINE_PATHS = re.compile(rf"(?<![\w.~/-])/(?:{FOLDERS})/\w")
REGISTRIES = re.compile(
    "|".join(
        re.escape(host)
        for host in (
            "pypi" + ".org", "python" + "hosted.org", "repo1.maven" + ".org",
            "repo.maven" + ".apache.org",
            "deb.debian" + ".org", "registry.npm" + "js.org", "index.docker" + ".io",
        )
    )
)  # fmt: skip
MERGE_MARK = re.compile(r"(?:<{7}|>{7}|\|{7}) \S|={7}$")
NAMED_BLOCK = re.compile(r"^-- name: *(\S+) *$", re.MULTILINE)
LINK_ADDRESS = re.compile(r"\]\([^)]*\)?|https?://\S+")
FENCE = re.compile(r"^ {0,3}(```|~~~)")
COMMENT = re.compile(r"^-- (?!name:)\S.*$", re.MULTILINE)


def check(root: Path, files: Iterable[Path]) -> Iterator[str]:
    """Every fault in these files, as ``path:line: what is wrong``."""
    for path in files:
        name = path.relative_to(root)
        if path.name == "uv.lock":
            yield f"{name}:1: uv.lock names registries; `make lock` makes requirements.lock"
        text = _text(path)
        if text is None:
            continue
        yield from check_machine(name, text)
        yield from check_merges(name, text)
        if path.suffix in CODE:
            yield from check_length(name, text)
        if path.suffix == ".py":
            yield from check_functions(name, text)
        if path.suffix == ".md":
            yield from check_markdown(name, text)
        if path.suffix == ".sql" and name.parts[0] == "sql":
            yield from check_sql(name, text)
        if str(name) == "pyproject.toml":
            yield from check_pyproject(name, text)


def check_machine(name: Path, text: str) -> Iterator[str]:
    """Paths of one machine and addresses of registries."""
    for number, line in enumerate(text.splitlines(), start=1):
        if found := MACHINE_PATHS.search(line):
            yield f"{name}:{number}: a path of one machine ({found[0]}...)"
        if found := REGISTRIES.search(line):
            yield f"{name}:{number}: the address of a registry ({found[0]})"


def check_merges(name: Path, text: str) -> Iterator[str]:
    """Lines that git leaves where two branches changed the same text."""
    for number, line in enumerate(text.splitlines(), start=1):
        if MERGE_MARK.match(line):
            yield f"{name}:{number}: a merge was not finished here"


def check_length(name: Path, text: str) -> Iterator[str]:
    """Files that grew too long."""
    lines = text.count("\n")
    if lines > LONGEST_FILE:
        yield f"{name}:1: the file has {lines} lines, more than {LONGEST_FILE}"


def check_markdown(name: Path, text: str) -> Iterator[str]:
    """Lines of prose that are too long.  Tables, code and addresses of links may be longer."""
    in_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if FENCE.match(line):
            in_code = not in_code
        elif not in_code and not line.startswith("|"):
            prose = LINK_ADDRESS.sub("]", line)
            if len(prose) > LONGEST_LINE:
                yield f"{name}:{number}: {len(prose)} characters, more than {LONGEST_LINE}"


def check_functions(name: Path, text: str) -> Iterator[str]:
    """Functions that grew too long."""
    for node in ast.walk(ast.parse(text, filename=str(name))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > LONGEST_FUNCTION:
            yield (
                f"{name}:{node.lineno}: function {node.name} has {lines} lines, "
                f"more than {LONGEST_FUNCTION}"
            )


def check_sql(name: Path, text: str) -> Iterator[str]:
    """Blocks of SQL without a name or a comment, and names that are used twice."""
    found = list(NAMED_BLOCK.finditer(text))
    if "migrations" in name.parts:
        if not COMMENT.search(text):
            yield f"{name}:1: the migration has no comment that explains it"
        return
    if _statements(text[: found[0].start()] if found else text):
        yield f"{name}:1: SQL before the first `-- name:`"
    seen: set[str] = set()
    for block, following in zip(found, [*found[1:], None], strict=True):
        line = text.count("\n", 0, block.start()) + 1
        body = text[block.end() : following.start() if following else None]
        if not COMMENT.match(body.lstrip("\n")):
            yield f"{name}:{line}: block {block[1]} has no comment that explains it"
        if not _statements(body):
            yield f"{name}:{line}: block {block[1]} is empty"
        if block[1] in seen:
            yield f"{name}:{line}: there are two blocks {block[1]}"
        seen.add(block[1])


def _statements(text: str) -> str:
    """The text without line comments and surrounding blanks."""
    return re.sub(r"^\s*--.*$", "", text, flags=re.MULTILINE).strip()


def check_pyproject(name: Path, text: str) -> Iterator[str]:
    """Settings that do not belong in pyproject.toml."""
    tools = tomllib.loads(text).get("tool", {})
    for each in ("dagster", "dg"):
        if each in tools:
            yield f"{name}:1: [tool.{each}] switches workspace.yaml off; dg.toml holds it"


def tracked(root: Path) -> list[Path]:
    """Every file that git tracks or would track, so that a fault is found before the commit."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [root / name for name in sorted(set(listed.split("\0"))) if (root / name).is_file()]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None  # a picture


def main() -> int:
    """The command line: no arguments."""
    files = tracked(ROOT)
    faults = list(check(ROOT, files))
    for fault in faults:
        print(fault)
    print(f"house rules: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
