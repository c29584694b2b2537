"""Take the pictures of docs/reference/dagster.md from a running Dagster, with Chromium.

    python -m tools.screenshot [--url http://127.0.0.1:3000] [--only assets] [--output docs/images]

The web server is that of `make dev DEMO=1`, with a backfill of the asset `archive` on its page.
Chromium is looked up on the PATH; `apt-get install chromium` brings it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

GROUPS = "{ assetNodes { groupName repository { name location { name } } } }"
BACKFILLS = """
{ partitionBackfillsOrError(limit: 1) { ... on PartitionBackfills { results { id } } } }
"""
#: The topic of `make demo`.
TOPIC = "/assets/penstock/bank_accounts/accounts_"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
#: How long the page runs before the picture is taken, by the virtual clock of the browser.
PAGE_MILLISECONDS = 30_000
TIMEOUT_SECONDS = 180


class ScreenshotError(Exception):
    """There is no picture.  The text says what to do."""


def take(url: str, output: Path, size: tuple[int, int]) -> None:
    """Write a picture of one page."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise ScreenshotError("Chromium is not on the PATH; on Debian: apt-get install chromium")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="penstock-chromium-") as profile:
        picture = Path(profile) / "picture.png"
        command = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}",
            f"--window-size={size[0]},{size[1]}", f"--virtual-time-budget={PAGE_MILLISECONDS}",
            f"--screenshot={picture}", url,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise ScreenshotError(
                f"Chromium took no picture within {TIMEOUT_SECONDS} s; the machine is busy"
            ) from error
        if not picture.exists():
            raise ScreenshotError(f"Chromium took no picture: {done.stderr.strip()[-500:]}")
        shutil.copyfile(picture, output)


def require_dagster(url: str) -> None:
    """ScreenshotError unless a Dagster web server answers at this URL."""
    try:
        with urllib.request.urlopen(f"{url}/server_info", timeout=30) as answer:
            if b"dagster_webserver_version" in answer.read():
                return
    except (urllib.error.URLError, OSError) as error:
        raise ScreenshotError(
            f"nothing answers at {url} ({error}); start it with make dev"
        ) from error
    raise ScreenshotError(f"what answers at {url} is not Dagster")


@dataclass(frozen=True)
class Picture:
    """A page, and the size of the window that shows it."""

    page: Callable[[str], str]
    size: tuple[int, int] = (1500, 1000)


def ask(url: str, query: str) -> Any:
    """What Dagster answers to a GraphQL query."""
    request = urllib.request.Request(
        f"{url}/graphql",
        data=json.dumps({"query": query}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["data"]


def graph(url: str) -> str:
    """The lineage with every group unfolded, under both names that the web pages give groups."""
    found = set()
    for node in ask(url, GROUPS)["assetNodes"]:
        repository = node["repository"]
        place = f"{repository['name']}@{repository['location']['name']}"
        found |= {f"global@global:{node['groupName']}", f"{place}:{node['groupName']}"}
    return f"/asset-groups?{urllib.parse.urlencode({'expanded': ','.join(sorted(found))})}"


def backfill(url: str) -> str:
    """The newest backfill."""
    found = ask(url, BACKFILLS)["partitionBackfillsOrError"]["results"]
    if not found:
        raise ScreenshotError(f"there is no backfill; launch one at {url}{TOPIC}archive")
    return f"/runs/b/{found[0]['id']}?tab=runs"


PICTURES = {
    "assets": Picture(graph, (2200, 1900)),
    "asset": Picture(lambda _: f"{TOPIC}archive?view=overview", (1600, 1300)),
    "check": Picture(lambda _: f"{TOPIC}sequenced?view=checks&checkDetail=consumer_lag"),
    "health": Picture(lambda _: "/assets/penstock/health?view=overview", (1600, 1300)),
    # So wide that the names of assets are whole.
    "backfill": Picture(backfill, (2000, 800)),
    "jobs": Picture(lambda _: "/jobs"),
    "sensors": Picture(lambda _: "/automation", (1500, 1300)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshot", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:3000", help="the web server")
    parser.add_argument("--only", choices=PICTURES, help="one picture, else all")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images", help="a folder")
    options = parser.parse_args(arguments)
    url, chosen = options.url.rstrip("/"), [options.only] if options.only else [*PICTURES]
    try:
        require_dagster(url)
        for name in chosen:
            file = options.output / ("assets.png" if name == "assets" else f"dagster-{name}.png")
            take(f"{url}{PICTURES[name].page(url)}", file, PICTURES[name].size)
            print(file)
    except ScreenshotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
