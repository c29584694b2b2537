"""Schemathesis reads the OpenAPI page and tries what it describes: nothing is a server's error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from tests.contract.gateway.kit import Client, send
from tests.support import missing
from tools import clients

SECONDS = 120
#: Of their names only strange ones are tried, so that the others have something to work on.
ENDING = {"deleteQueue", "deleteTopic"}


def described(client: Client) -> dict[str, Any]:
    """The page for one account, whose calls have names that are there as often as others."""
    page: dict[str, Any] = send(client.port, "GET", "/openapi.json").json()
    paths: dict[str, Any] = {}
    for path, operations in page["paths"].items():
        kept = {
            method: each
            for method, each in operations.items()
            if "stream" not in each["operationId"].lower() and not path.endswith("/stream")
        }
        for each in kept.values():
            each["parameters"] = [one for one in each["parameters"] if one["name"] != "account"]
            for one in each["parameters"]:
                if one["in"] == "path" and each["operationId"] not in ENDING:
                    one["schema"] = {"anyOf": [{"enum": ["there"]}, {"type": "string"}]}
        if kept:
            paths[path.replace("{account}", client.account)] = kept
    return page | {"paths": paths}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("sequencing")
def test_nothing_that_is_described_is_an_error_of_the_server(shop: Client, tmp_path: Path) -> None:
    try:
        environment = clients.SCHEMATHESIS.environment()
    except PenstockError as error:
        missing("Schemathesis", error)
    assert shop.key is not None
    assert shop("POST", "/queues", {"queueName": "there"}).status == 201
    page = tmp_path / "openapi.json"
    page.write_text(json.dumps(described(shop)))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", str(page)),
            *("--url", f"http://127.0.0.1:{shop.port}", "--seed", "1", "--no-color"),
            *("--header", f"Authorization: Key {shop.key.key_id}.{shop.key.secret}"),
            *("--checks", "not_a_server_error", "--phases", "examples,coverage,fuzzing"),
            *("--max-time", str(SECONDS), "--request-timeout", "40", "--warnings", "off"),
        ],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    print(done.stdout[-2_000:])  # noqa: T201 - how much was tried
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-2_000:]
