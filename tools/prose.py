"""Count two habits of the pages that hide who does what: see `make check`.

A sentence that begins with a word like "it", "so" or "what" leaves the reader to look for the noun.
A free relative ("what is left", "who was paused") has no noun at all. Both are counted as shares of
the sentences, over the README and the pages of `docs/` for users, and over all other pages of
`docs/`. Code, tables, headings, questions and pages that are made from code do not count.

Run it as `python -m tools.prose`; with pages as arguments it names each place of these pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.made import written

ROOT = Path(__file__).resolve().parents[1]

#: The largest shares of sentences, in per cent: begun with a pronoun, and with a free relative.
LIMITS = {"users": (8.0, 1.0), "others": (8.0, 1.0)}

_FENCE = re.compile(r"^ *```.*?^ *```|^(?: {4,}[^\n]*\n)+|<!--.*?-->", re.MULTILINE | re.DOTALL)
_APART = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )")
_SKIPPED = ("#", "|", "!", "<", ">")
_MARKER = re.compile(r"^(?:[-*]|\d+\.) +(?:\[.\] )?")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_WORDS = 3  # less is no sentence
_END = re.compile(r"(?<=[.!?:;])[*)\"]* +(?=[*(\"`]*[A-Z`])")
_BEGINS = re.compile(
    r"\W*(?:what|whatever|who|whoever|which|that|this|these|those|it|they|he|she|one|others|so|"
    r"such|there|both)\b(?!')",
    re.IGNORECASE,
)
_RELATIVE = re.compile(
    r"\b(?:what(?:ever)?|whoever|"
    r"(?:^\W*|[,;:(] |\b(?:by|for|to|of|as|and|or|from|than|knows) )who) "
    r"(?:is|are|was|were|has|have|had|can|may|must|will|would|does|do|did|(?:it|they|you|he) )",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Count:
    """The sentences of some pages, and those with each habit."""

    sentences: int
    begun: tuple[str, ...]
    relatives: tuple[str, ...]

    @property
    def shares(self) -> tuple[float, float]:
        """Both shares, in per cent."""
        one = 100 / max(self.sentences, 1)
        return one * len(self.begun), one * len(self.relatives)


def sentences(page: str) -> list[str]:
    """The sentences of a page's paragraphs and items."""
    found: list[str] = []
    for block in _APART.split(_FENCE.sub("\n", page)):
        text = " ".join(block.split())
        if text and not text.startswith(_SKIPPED):
            found += _END.split(_LINK.sub(r"\1", _MARKER.sub("", text)))
    return [each for each in found if len(each.split()) >= _WORDS and not each.endswith("?")]


def count(pages: Iterable[str]) -> Count:
    """Both habits in the texts of these pages."""
    all_of_them = [each for page in pages for each in sentences(page)]
    return Count(
        len(all_of_them),
        tuple(each for each in all_of_them if _BEGINS.match(each)),
        tuple(each for each in all_of_them if _RELATIVE.search(each)),
    )


def groups(root: Path) -> dict[str, list[Path]]:
    """The pages for users, and all others of `docs/`."""
    users = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return {"users": users, "others": sorted({*(root / "docs").rglob("*.md")} - {*users})}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the pages with the limits, or name each place of some pages."""
    given = sys.argv[1:] if arguments is None else arguments
    for name in given:
        found = count([Path(name).read_text("utf-8")])
        print(f"{name}: {_shown(found)}")
        print(*(f"  begins:   {each}" for each in found.begun), sep="\n")
        print(*(f"  relative: {each}" for each in found.relatives), sep="\n")
    if given:
        return 0
    late = False
    for group, pages in groups(ROOT).items():
        found = count(written(page.read_text("utf-8")) for page in pages)
        late |= any(share > most for share, most in zip(found.shares, LIMITS[group], strict=True))
        print(f"prose of {group}: {_shown(found)}; limits {LIMITS[group]}")
    return int(late)


def _shown(found: Count) -> str:
    begun, relatives = found.shares
    return (
        f"{found.sentences} sentences, {begun:.1f} % begin with a pronoun,"
        f" {relatives:.1f} % have a free relative"
    )


if __name__ == "__main__":
    sys.exit(main())
