"""The site of the pages: built strictly, with nothing that asks another server."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tools import site


def test_a_link_to_a_folder_is_plain_on_the_site() -> None:
    page = site.ROOT / "README.md"
    text = "[a](docs) [b](docs/README.md) [c](docs/) [d](https://example.org/docs)"
    plain = site.without_folders(page, text)
    assert plain == "a [b](docs/README.md) c [d](https://example.org/docs)"


def test_search_shows_pages_for_users_first() -> None:
    """By what mkdocs is told of each page; a page that GitHub shows has no such lines."""
    told = {place: site.front_matter(place) for place in (
        "README.md", "docs/queue.md", "docs/reference/queue.md", "docs/evidence/scale.md",
        "docs/evidence/decisions/queue.md", "CONTRIBUTING.md",
    )}  # fmt: skip
    boosts = [re.findall(r"boost: ([\d.]+)", each) for each in told.values()]
    assert boosts == [["2"], ["2"], [], ["0.5"], ["0.5"], []]
    assert told["CONTRIBUTING.md"] == told["docs/reference/queue.md"] == ""
    assert "hide: [navigation]" in told["README.md"]
    assert not (site.ROOT / "README.md").read_text("utf-8").startswith("---")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_site_is_built(tmp_path: Path) -> None:
    """Strictly: each link leads somewhere, and the navigation has each page."""
    html = tmp_path / "html"
    arguments = ["build", "--strict", "--quiet", "--site-dir", str(html)]
    assert site.main(arguments) == 0
    pages = {path.relative_to(html).as_posix() for path in html.rglob("*.html")}
    assert {"index.html", "docs/first-hour.html", "docs/reference/sql.html"} <= pages
    found = json.loads((html / "search" / "search_index.json").read_text("utf-8"))
    assert any("exactly-once" in each["text"].lower() for each in found["docs"])
    asked = r"""<(?:script|link|img)\b[^>]*(?:src|href)=["']?(https?://[^"' >]+)"""
    for page in pages:
        assert re.findall(asked, (html / page).read_text("utf-8")) == [], page
