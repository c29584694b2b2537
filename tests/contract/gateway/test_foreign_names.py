"""A foreign name is as one that does not exist: in answers, headers, log lines, and in time."""

from __future__ import annotations

import http.client
import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from consumers.gateway.app import OPERATIONS
from tests.contract.databases import ContractDatabase
from tests.contract.gateway.kit import Client, Gateway, Reply, gateway_of
from tests.contract.gateway.sqs_kit import raw
from tests.contract.gateway.test_levels import BODIES, QUERIES
from tests.kit.log import wait_until
from tests.kit.proof import proves

#: As long as the foreign one.
FOREIGN, MISSING = "bankone", "nonebut"


@pytest.fixture(scope="module")
def told(shared_database: ContractDatabase) -> Iterator[Gateway]:
    """A gateway that logs each request, and an account with all that another may not learn of."""
    with gateway_of(shared_database, request_log="all") as made:
        bank = made.client(FOREIGN)
        assert bank("POST", "/queues", {"queueName": "orders"}).status == 201
        assert bank("POST", "/queues/orders/messages", b"x").status == 201
        made.sequence()
        yield made


def seen(reply: Reply, name: str) -> tuple[int, dict[str, str], bytes]:
    """What a caller can compare, without the name that it has sent itself."""
    headers = {key: value for key, value in reply.headers.items() if key != "date"}
    return reply.status, headers, reply.body.replace(name.encode(), b"NAME")


def calls(shop: Client) -> Iterator[tuple[str, Callable[[str], Reply]]]:
    """Each call of the API, and those of SQS that name a queue, about the account of a name."""
    for each in OPERATIONS:
        path = each.path.replace("{queue}", "orders").replace("{topic:path}", "orders")
        path = path.replace("{subscription}", "orders") + QUERIES.get(each.name, "")
        body = BODIES.get(each.name, b"")
        yield (
            each.name,
            lambda name, each=each, path=path, body=body: shop(  # type: ignore[misc]
                each.method, path, body, account=name
            ),
        )
    more: dict[str, dict[str, Any]] = {
        "SendMessage": {"MessageBody": "x"},
        "ReceiveMessage": {},
        "GetQueueAttributes": {"AttributeNames": ["All"]},
        "PurgeQueue": {},
        "DeleteQueue": {},
        "ListDeadLetterSourceQueues": {},
        "ChangeMessageVisibility": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
        "DeleteMessage": {"ReceiptHandle": "x"},
    }
    for target, given in more.items():
        yield (
            target,
            lambda name, target=target, given=given: raw(  # type: ignore[misc]
                shop,
                target,
                json.dumps(
                    {"QueueUrl": f"http://127.0.0.1:{shop.port}/{name}/orders"} | given
                ).encode(),
            ),
        )
    yield "RedrivePolicy", lambda name: raw(shop, "SetQueueAttributes", _redrive(shop, name))


def _redrive(shop: Client, name: str) -> bytes:
    """Dead letters to a queue of the account of a name: the database is asked for it."""
    target = f"arn:aws:sqs:eu-west-1:{name}:orders"
    policy = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": "3"})
    url = f"http://127.0.0.1:{shop.port}/{shop.account}/mine"
    return json.dumps({"QueueUrl": url, "Attributes": {"RedrivePolicy": policy}}).encode()


@pytest.fixture(scope="module")
def shop(told: Gateway) -> Client:
    """The account that asks."""
    made = told.client("asking")
    assert made("POST", "/queues", {"queueName": "mine"}).status == 201
    return made


@proves("D11 over HTTP")
def test_answers_and_log_lines_are_those_of_a_name_that_is_not_there(
    told: Gateway, shop: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Of every call.  Guard: the account of the key is compared before anything is looked for."""
    caplog.set_level(logging.DEBUG, logger="penstock.gateway")
    for call, ask in calls(shop):
        lines = []
        answers = []
        for name in (FOREIGN, MISSING):
            caplog.clear()
            answers.append(seen(ask(name), name))
            # It is written after the answer.
            wait_until(lambda: "request" in caplog.messages, "the line of the request")
            lines.append([_line(each, name) for each in caplog.records])
        assert answers[0] == answers[1], call
        assert answers[0][0] >= 400, call
        assert lines[0] == lines[1], call


def _line(record: logging.LogRecord, name: str) -> str:
    """What a line says, without times and the name that was asked for."""
    fixed = set(vars(logging.makeLogRecord({}))) | {"ms", "message", "asctime"}
    more = {key: value for key, value in vars(record).items() if key not in fixed}
    return f"{record.levelname} {record.getMessage()} {more}".replace(name, "NAME")


class Kept:
    """One connection, on which calls are timed."""

    def __init__(self, shop: Client) -> None:
        self._shop = shop
        self._made = http.client.HTTPConnection("127.0.0.1", shop.port, timeout=30)

    def close(self) -> None:
        self._made.close()

    def seconds(self, account: str, path: str) -> float:
        assert self._shop.key is not None
        told = {"Authorization": f"Key {self._shop.key.key_id}.{self._shop.key.secret}"}
        begun = time.perf_counter()
        self._made.request("GET", f"/api/v1/accounts/{account}{path}", headers=told)
        self._made.getresponse().read()
        return time.perf_counter() - begun


@proves("D11 over HTTP")
@pytest.mark.parametrize(
    "given", [(40, 0.5, 5), pytest.param((1_000, 0.05, 1), marks=pytest.mark.long)], ids=str
)
@pytest.mark.parametrize("path", ["/topics/orders/events?from=1", "/queues/orders/counts"])
def test_time_does_not_tell_a_foreign_account_from_none(
    told: Gateway, shop: Client, path: str, given: tuple[int, float, int]
) -> None:
    """Pairs in turn, so that the load of the machine is the same for both.

    What another test does beside a few pairs may hit one name more: a leak is there in each try.
    """
    pairs, apart, tries = given
    told_apart = []
    for _ in range(tries):
        foreign, missing = _medians(shop, path, pairs)
        if abs(foreign - missing) <= apart * max(foreign, missing):
            return
        told_apart.append((foreign, missing))
    pytest.fail(f"seconds of a foreign and of a missing name: {told_apart}")


def _medians(shop: Client, path: str, pairs: int) -> tuple[float, float]:
    found: dict[str, list[float]] = {FOREIGN: [], MISSING: []}
    with closing(Kept(shop)) as kept:
        for number in range(pairs + 10):
            for name in (FOREIGN, MISSING) if number % 2 else (MISSING, FOREIGN):
                seconds = kept.seconds(name, path)
                if number >= 10:  # the first ones find nothing that is ready
                    found[name].append(seconds)
    return statistics.median(found[FOREIGN]), statistics.median(found[MISSING])
