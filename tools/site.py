"""Build the site of the pages into `.penstock/site/html`: `make docs`.

The pages link to each other and to files of the repository. So a copy of both is made, in the same
places, and mkdocs builds the site of it, strictly: a link to nowhere, or a page that the navigation
of `mkdocs.yml` lacks, is an error. Links to folders lose their target, because a site has none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.check_house import tracked

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / ".penstock" / "site" / "source"
#: What the pages link to, beside themselves.
FOLDERS = ("docs", "examples", "deploy")
FILES = frozenset({"policies.yaml", "LICENSE"})

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
#: The first page has nothing to navigate to beside it. Search shows pages for users first.
_FRONT = (
    ("README.md", "hide: [navigation]\nsearch:\n  boost: 2"),
    ("docs/evidence/", "search:\n  boost: 0.5"),
    ("docs/reference/concepts.md", "search:\n  boost: 2"),
    ("docs/reference/", ""),
    ("docs/", "search:\n  boost: 2"),
)
#: 100 characters of code fit at 1,280 pixels, names in the first columns of tables are not cut, nor
#: SQL's results, errors and the names of tests, and pictures get a frame that both colours show.
_STYLE = """\
.md-grid { max-width: 75rem; }
.md-sidebar { width: 10.5rem; }
.md-typeset pre > code { font-size: .74em; }
.md-typeset table:not([class]) { font-size: .68rem; }
.md-typeset table:not([class]) td { vertical-align: top; }
.md-typeset table:not([class]) th { min-width: 3rem; }
#invariants ~ .md-typeset__scrollwrap th:nth-child(3) { min-width: 10.5rem; }
.md-typeset th:nth-child(3):nth-last-child(3) { min-width: 6rem; }
.md-typeset th:nth-child(4):nth-last-child(2) { min-width: 6.5rem; }
.md-typeset td:nth-child(-n + 2) code { word-break: normal; overflow-wrap: normal; }
.md-typeset img { border: 1px solid var(--md-default-fg-color--lightest); background: #fff; }
"""


def copied(path: Path) -> bool:
    """Whether a file of the repository is part of the site."""
    place = path.relative_to(ROOT)
    if len(place.parts) == 1:
        return place.suffix == ".md" or place.name in FILES
    return place.parts[0] in FOLDERS


def front_matter(place: str) -> str:
    """What mkdocs is told of a page, and what GitHub would show as a table."""
    told = next((text for begin, text in _FRONT if place.startswith(begin)), "")
    return f"---\n{told}\n---\n\n" if told else ""


def without_folders(page: Path, text: str) -> str:
    """The text of a page whose links to folders are plain words."""

    def plain(found: re.Match[str]) -> str:
        label, target, _ = found.groups()
        return label if "://" not in target and (page.parent / target).is_dir() else found[0]

    return _LINK.sub(plain, text)


def stage() -> None:
    """Copy what belongs to the site."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for path in filter(copied, tracked(ROOT)):
        place = SOURCE / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            told = front_matter(path.relative_to(ROOT).as_posix())
            place.write_text(told + without_folders(path, path.read_text("utf-8")), "utf-8")
        else:
            shutil.copyfile(path, place)
    (SOURCE / "site.css").write_text(_STYLE, "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Stage the pages and build the site; other arguments go to mkdocs."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    stage()
    command = [sys.executable, "-m", "mkdocs", *(given or ["build", "--strict", "--quiet"])]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if done == 0 and not given:
        print("the site is in .penstock/site/html; `make docs ARGS=serve` shows it, with search")
    return done


if __name__ == "__main__":
    sys.exit(main())
