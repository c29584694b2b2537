"""Links between the pages lead somewhere; the decisions are few enough to be read."""

from __future__ import annotations

import re
from pathlib import Path

from tools.check_house import tracked

ROOT = Path(__file__).resolve().parents[2]
#: A maintainer reads all decisions in an hour.
MOST_WORDS = 9_500
DECISIONS = ROOT / "docs" / "evidence" / "decisions"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def _anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.replace("`", "").lower()).replace(" ", "-")


def _prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def _anchors(page: Path) -> set[str]:
    return {_anchor(heading) for heading in HEADING.findall(_prose(page))}


def dead_links(page: Path) -> list[str]:
    """The links of a page that lead to no file, or to no heading of a page."""
    dead = []
    for target in LINK.findall(_prose(page)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            dead.append(target)
    return dead


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [path for path in tracked(ROOT) if path.suffix == ".md"]
    assert len(pages) > 25
    assert {str(page.relative_to(ROOT)): dead for page in pages if (dead := dead_links(page))} == {}


def test_a_link_to_nowhere_is_found(tmp_path: Path) -> None:
    """A page that is missing, and a heading that is."""
    (tmp_path / "there.md").write_text("# Here `it` is\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#here-it-is) [b](there.md#gone) [c](missing.md) [d](#no)\n")
    assert dead_links(page) == ["there.md#gone", "missing.md", "#no"]


def test_the_index_names_every_page_of_decisions() -> None:
    pages = {page.name: page.read_text("utf-8") for page in DECISIONS.glob("*.md")}
    index = LINK.findall(pages["README.md"])
    assert sorted(index) == sorted(pages.keys() - {"README.md"})
    assert sum(len(text.split()) for text in pages.values()) <= MOST_WORDS


FILE = re.compile(r"[\w/]+\.(?:py|sql)\b")


def _named_files(text: str) -> list[str]:
    """The files that a text names; one without a folder lies beside the one before it."""
    found: list[str] = []
    for name in FILE.findall(text):
        found.append(name if "/" in name else f"{Path(found[-1]).parent}/{name}")
    return found


def test_the_files_of_the_architecture_page_are_there() -> None:
    """In the text, and in the picture."""
    page, picture = (
        ROOT / "docs" / "evidence" / "architecture.md",
        ROOT / "docs" / "images" / "architecture.svg",
    )
    files = _named_files(page.read_text("utf-8")) + _named_files(picture.read_text("utf-8"))
    assert len(files) > 40
    assert sorted({name for name in files if not (ROOT / name).is_file()}) == []
