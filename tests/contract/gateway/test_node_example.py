"""examples/typescript: a program for node against a gateway."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.contract.gateway.kit import Client, Gateway
from tests.support import missing

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "typescript"


@pytest.mark.long_on("mysql", "mariadb")
def test_each_order_is_billed_once_and_committed(gateway: Gateway, shop: Client) -> None:
    node = shutil.which("node")
    if node is None:
        missing("Node", "node is not on the PATH")
    assert shop.key is not None
    key = f"{shop.key.key_id}.{shop.key.secret}"
    command = [node, str(FOLDER / "orders.mjs"), f"http://127.0.0.1:{shop.port}/{shop.account}"]
    with gateway.sequencing():
        done = subprocess.run(
            command,
            env=os.environ | {"PENSTOCK_GATEWAY_KEY": key},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert sorted(done.stdout.splitlines()) == [
        "billed 3 orders",
        *(f"billed order {number}: {number * 10}" for number in (1, 2, 3)),
    ]
    places = shop("GET", "/subscriptions/billing/positions").json()["positions"]
    assert sum(each["lag_events"] for each in places) == 0
    assert subprocess.run(command[:2], capture_output=True).returncode == 2


@pytest.mark.long
def test_its_types_are_right(tmp_path: Path) -> None:
    """The TypeScript compiler reads the types in the comments."""
    npm = shutil.which("npm")
    if npm is None:
        missing("Node", "neither node nor npm is on the PATH")
    for each in FOLDER.iterdir():
        if each.is_file():
            shutil.copy(each, tmp_path / each.name)
    options = ["--no-package-lock", "--no-audit", "--no-fund", "--prefer-offline"]
    done = subprocess.run(
        [npm, "install", *options], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        missing("the npm package typescript", done.stderr.strip().splitlines()[-1])
    checked = subprocess.run(
        [npm, "run", "--silent", "check"], cwd=tmp_path, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
