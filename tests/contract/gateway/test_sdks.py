"""Every operation of SQS by AWS's own clients, which are unchanged."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from botocore import xform_name
from botocore.exceptions import ClientError

from consumers.gateway.sqs.door import MISSING, OPERATIONS
from penstock.errors import PenstockError
from tests.contract.gateway.kit import Client
from tests.contract.gateway.sqs_kit import sqs_of
from tests.gateway import sdks
from tests.gateway.sdks.all_calls import CallFailed, all_calls
from tests.kit.proof import proves
from tests.support import missing
from tools import clients

SDKS = Path(sdks.__file__).parent
SEEN = {
    "url": True, "listed": 2, "sources": 1, "tags": {"b": "2"}, "text": "blue", "bytes": "00ff",
    "bodies": ["one ä", "three", "two"], "deleted": 2, "missing": True,
}  # fmt: skip
#: Of a handle that was never one.
NO_TASK = {"ResourceNotFoundException", "InvalidParameterValue"}
pytestmark = [
    pytest.mark.usefixtures("sequencing"),
    pytest.mark.long_on("mysql", "mariadb"),
    pytest.mark.timeout(1_200),
]


def require(told: Any) -> None:
    """Each operation that there is was answered, and as it should be."""
    outcomes, seen = told["outcomes"], told["seen"]
    assert outcomes.keys() == MISSING | OPERATIONS.keys()
    expected = {
        name: "UnsupportedOperation" if name in MISSING else "ok" for name in outcomes
    }  # fmt: skip
    if "CancelMessageMoveTask" in OPERATIONS:
        assert outcomes.pop("CancelMessageMoveTask") in NO_TASK
        del expected["CancelMessageMoveTask"]
    assert outcomes == expected
    assert set(seen.pop("operations", MISSING | OPERATIONS.keys())) == MISSING | OPERATIONS.keys()
    assert seen == SEEN


def ran(command: list[str], **more: Any) -> str:
    """What a program has printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    return done.stdout


def shown(client: Client) -> list[str]:
    """What each program is given: the endpoint, the key and its secret."""
    assert client.key is not None
    return [f"http://127.0.0.1:{client.port}", client.key.key_id, client.key.secret]


@proves("SQS clients")
def test_every_operation_by_boto3(shop: Client) -> None:
    sqs = sqs_of(shop)
    assert set(sqs.meta.service_model.operation_names) == MISSING | OPERATIONS.keys()

    def call(name: str, given: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(sqs, xform_name(name))(**given)
        except ClientError as error:
            raise CallFailed(error.response["Error"]["Code"]) from None
        return answer

    require(all_calls(call, lambda data: data))


@pytest.mark.long
def test_every_operation_by_the_aws_cli(shop: Client) -> None:
    try:
        environment = clients.AWS_CLI.environment()
    except PenstockError as error:
        missing("the AWS CLI", error)
    endpoint, key_id, secret = shown(shop)
    environment |= {
        "AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": secret, "AWS_MAX_ATTEMPTS": "1",
        "AWS_DEFAULT_REGION": "eu-west-1", "AWS_CONFIG_FILE": os.devnull,
    }  # fmt: skip

    def call(name: str, given: dict[str, Any]) -> dict[str, Any]:
        command = [sys.executable, "-m", "awscli", "sqs", xform_name(name, "-"), "--output", "json"]
        done = subprocess.run(
            [*command, "--endpoint-url", endpoint, "--cli-input-json", json.dumps(given)],
            env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        found = re.search(r"An error occurred \(([\w.]+)\)", done.stderr)
        if found:
            raise CallFailed(found[1])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "{}")

    # Its version 1 takes bytes as they stand in the JSON, and prints them in base64.
    told = all_calls(call, lambda data: base64.b64encode(data).decode())
    told["seen"]["bytes"] = base64.b64decode(bytes.fromhex(told["seen"]["bytes"])).hex()
    require(told)


@pytest.mark.long
def test_every_operation_by_the_sdk_for_javascript(shop: Client, tmp_path: Path) -> None:
    try:
        folder = clients.AWS_FOR_JAVASCRIPT.folder()
    except PenstockError as error:
        missing("the AWS SDK for JavaScript", error)
    node = shutil.which("node")
    assert node is not None
    (tmp_path / "node_modules").symlink_to(folder / "node_modules")
    program = Path(shutil.copy(SDKS / "all_calls.mjs", tmp_path))
    require(json.loads(ran([node, str(program), *shown(shop)])))


@pytest.mark.long
def test_every_operation_by_the_sdk_for_java(shop: Client, tmp_path: Path) -> None:
    try:
        lib = clients.AWS_FOR_JAVA.root(clients.HOME) / "lib"
        java = clients.AWS_FOR_JAVA.command(lib)
    except PenstockError as error:
        missing("the AWS SDK for Java", error)
    compiler = ["org.eclipse.jdt.internal.compiler.batch.Main", "-17", "-encoding", "UTF-8"]
    jars = os.pathsep.join(map(str, lib.glob("*.jar")))
    ran([*java, *compiler, "-cp", jars, "-d", str(tmp_path), str(SDKS / "AllCalls.java")])
    java[-1] += f"{os.pathsep}{tmp_path}"
    said = ran([*java, "-Dfile.encoding=UTF-8", "AllCalls", *shown(shop)])
    require(json.loads(said.splitlines()[-1]))
