"""Take a picture of the asset graph of a running Dagster web server, with Debian's Chromium.

    python -m tools.screenshot [--url http://127.0.0.1:3000] [--output docs/images/assets.png]

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
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: The lineage of all assets. The groups to unfold are added.
PAGE = "/asset-groups"
GROUPS = "{ assetNodes { groupName repository { name location { name } } } }"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
#: How long the page runs before the picture is taken, by the virtual clock of the browser.
PAGE_MILLISECONDS = 30_000
TIMEOUT_SECONDS = 180


class ScreenshotError(Exception):
    """There is no picture.  The text says what to do."""


def take(url: str, output: Path, *, width: int = 2200, height: int = 1450) -> Path:
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
            f"--window-size={width},{height}", f"--virtual-time-budget={PAGE_MILLISECONDS}",
            f"--screenshot={picture}", url,
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
        )
        if not picture.exists():
            raise ScreenshotError(f"Chromium took no picture: {done.stderr.strip()[-500:]}")
        shutil.copyfile(picture, output)
    return output


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


def unfolded(url: str) -> str:
    """The page with every group unfolded, under both names that the web pages give groups."""
    request = urllib.request.Request(
        f"{url}/graphql",
        data=json.dumps({"query": GROUPS}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        nodes = json.load(answer)["data"]["assetNodes"]
    names = set()
    for node in nodes:
        repository = node["repository"]
        place = f"{repository['name']}@{repository['location']['name']}"
        names |= {f"global@global:{node['groupName']}", f"{place}:{node['groupName']}"}
    return f"{PAGE}?{urllib.parse.urlencode({'expanded': ','.join(sorted(names))})}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshot", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:3000", help="the web server")
    parser.add_argument("--page", help="the page, instead of the asset graph")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "docs" / "images" / "assets.png", help="PNG file"
    )
    parser.add_argument("--size", default="2200x1450", help="of the window")
    options = parser.parse_args(arguments)
    width, height = (int(part) for part in options.size.split("x"))
    try:
        url = options.url.rstrip("/")
        require_dagster(url)
        page = options.page or unfolded(url)
        picture = take(f"{url}{page}", options.output, width=width, height=height)
    except ScreenshotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
