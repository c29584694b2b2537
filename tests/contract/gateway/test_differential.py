"""The SQS door beside moto and ElasticMQ: each difference has a reason, and no other is there."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pprint import pformat
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from tests.contract.gateway.differences import ELASTICMQ, MOTO
from tests.contract.gateway.differential import all_calls
from tests.contract.gateway.kit import Client
from tests.contract.gateway.sqs_kit import sqs_of
from tests.kit.proof import proves
from tools.servers.elasticmq import ElasticServer

pytestmark = [pytest.mark.usefixtures("sequencing"), pytest.mark.long_on("mysql", "mariadb")]


ABSENT = "(absent)"
Answers = dict[str, dict[str, Any]]


def found(ours: Answers, theirs: Answers) -> dict[str, Any]:
    """What differs, by call and place: ours and theirs."""
    assert ours.keys() == theirs.keys()
    differing: dict[str, Any] = {}
    for name, mine in ours.items():
        other = theirs[name]
        if ("error" in mine) != ("error" in other):
            differing[name] = (mine.get("error", "done"), other.get("error", "done"))
            continue
        for path in sorted(mine.keys() | other.keys()):
            pair = mine.get(path, ABSENT), other.get(path, ABSENT)
            if pair[0] != pair[1]:
                differing[f"{name}: {path}"] = pair
    return differing


def require(differing: dict[str, Any], reasons: dict[str, tuple[str, ...]]) -> None:
    """Each difference is listed, and each that is listed is one."""
    listed = {each for names in reasons.values() for each in names}
    unknown = {name: each for name, each in differing.items() if name not in listed}
    assert not unknown, pformat(unknown, width=200)
    assert listed - differing.keys() == set()


@pytest.fixture
def moto() -> Iterator[str]:
    """A moto of this test's own."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


def other(endpoint: str) -> Any:
    """boto3 against another server."""
    return boto3.session.Session().client(
        "sqs", region_name="eu-west-1", endpoint_url=endpoint, aws_access_key_id="x",
        aws_secret_access_key="x", config=Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip


def both(shop: Client, endpoint: str) -> dict[str, Any]:
    """What differs; both are asked at the same time, because some calls wait."""
    with ThreadPoolExecutor(2) as pool:
        ours = pool.submit(all_calls, sqs_of(shop), 20)
        theirs = pool.submit(all_calls, other(endpoint), 5)
        return found(ours.result(), theirs.result())


@proves("SQS clients")
def test_it_differs_from_moto_as_the_table_says(shop: Client, moto: str) -> None:
    require(both(shop, moto), MOTO)


@pytest.mark.long
def test_it_differs_from_elasticmq_as_the_table_says(shop: Client, elastic: ElasticServer) -> None:
    require(both(shop, elastic.url()), ELASTICMQ)


def test_a_difference_without_a_reason_fails_and_a_reason_without_one() -> None:
    differing = found({"send": {"status": 200}}, {"send": {"status": 400}})
    require(differing, {"why": ("send: status",)})
    wrong: tuple[dict[str, tuple[str, ...]], ...] = ({}, {"why": ("send: status", "receive")})
    for reasons in wrong:
        with pytest.raises(AssertionError):
            require(differing, reasons)
