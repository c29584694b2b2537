"""A send that an SDK repeats after a lost answer: one message, and the first one's id."""

from __future__ import annotations

import json
import threading
from typing import Any

import boto3
import botocore.httpsession
import pytest
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError

from consumers.gateway import publishing
from consumers.gateway.sqs import calls
from tests.contract.gateway.kit import Client, Gateway, Reply
from tests.contract.gateway.sqs_kit import raw, received
from tests.kit.proof import proves

pytestmark = pytest.mark.usefixtures("sequencing")

ATTEMPT = {"amz-sdk-invocation-id": "8b6f5a6e-9f8e-4d8e-8a0e-4d8e8a0e4d8e"}


def sent(shop: Client, url: str, body: str = "x", **headers: str) -> Reply:
    given = json.dumps({"QueueUrl": url, "MessageBody": body}).encode()
    return raw(shop, "SendMessage", given, **headers)


def ids(*replies: Reply) -> set[str]:
    assert {each.status for each in replies} == {200}
    return {each.json()["MessageId"] for each in replies}


@proves("a resend of SQS")
def test_boto3_sends_again_after_a_lost_answer_and_there_is_one_message(
    shop: Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the claim.  The first answer of every call is lost on its way."""
    assert shop.key is not None
    real = botocore.httpsession.URLLib3Session.send
    lost: set[bytes] = set()

    def send(self: Any, request: Any) -> Any:
        answer = real(self, request)
        attempt = request.headers["amz-sdk-invocation-id"]
        if attempt not in lost:
            lost.add(attempt)
            raise ConnectionClosedError(endpoint_url=request.url)
        return answer

    client = boto3.session.Session().client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=f"http://127.0.0.1:{shop.port}",
        aws_access_key_id=shop.key.key_id,
        aws_secret_access_key=shop.key.secret,
        config=Config(retries={"total_max_attempts": 2, "mode": "standard"}),
    )
    entries = [{"Id": str(n), "MessageBody": "same"} for n in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(botocore.httpsession.URLLib3Session, "send", send)
        one = client.send_message(QueueUrl=url, MessageBody="one")
        batch = client.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]
    assert len(lost) == 2
    found = {each["MessageId"] for each in received(client, url, 4)}
    assert found == {one["MessageId"], *(each["MessageId"] for each in batch)}
    assert len(found) == 4  # three entries with the same body are three messages
    assert "Messages" not in client.receive_message(QueueUrl=url)


def test_attempts_of_one_call_are_one_message_and_all_else_are_others(
    gateway: Gateway, shop: Client, sqs: Any, url: str
) -> None:
    first = sent(shop, url, **ATTEMPT)
    assert ids(first, sent(shop, url, **ATTEMPT)) == ids(first)
    assert first.json()["MD5OfMessageBody"] == "9dd4e461268c8034f5c8564e155c67a6"
    other = sqs.create_queue(QueueName="other")["QueueUrl"]
    apart = [
        sent(shop, url),
        sent(shop, url),
        sent(shop, url, body="y", **ATTEMPT),
        sent(shop, other, **ATTEMPT),
        sent(shop, url, **{"amz-sdk-invocation-id": "another"}),
    ]
    assert len(ids(first, *apart)) == 6
    # The claim ends by the database's clock, five minutes after the send.
    ((low, high),) = gateway.db.run("SELECT min(ends_at), max(ends_at) FROM penstock.recent_sends")
    assert (high - low).total_seconds() < 300
    past = {"postgres": "now() - interval '1 s'"}.get(
        gateway.db.engine, "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND"
    )
    gateway.db.run(f"UPDATE penstock.recent_sends SET ends_at = {past}")
    assert ids(sent(shop, url, **ATTEMPT)) != ids(first)


@proves("a resend of SQS")
def test_a_resend_while_the_first_is_open_comes_again_and_gets_its_id(
    shop: Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: the lock of the claim.  The first is held after its publish, before its commit."""
    real, holds, may_end = publishing.publish_together, threading.Event(), threading.Event()

    def held(connection: Any, wanted: Any) -> Any:
        done = real(connection, wanted)
        if not holds.is_set():
            holds.set()
            assert may_end.wait(30)
        return done

    monkeypatch.setattr(publishing, "publish_together", held)
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(sent(shop, url, **ATTEMPT)))
    thread.start()
    assert holds.wait(30)
    try:
        second = sent(shop, url, **ATTEMPT)
        assert second.status == 503
        assert second.headers["retry-after"]
        # Others of the account do not wait for it.
        assert ids(sent(shop, url, body="other", **ATTEMPT))
    finally:
        may_end.set()
        thread.join()
    assert ids(*replies, sent(shop, url, **ATTEMPT)) == ids(*replies)


def batch(shop: Client, url: str, *bodies: str, **headers: str) -> dict[str, str]:
    """The ids by entry of a SendMessageBatch."""
    entries = [{"Id": f"e{n}", "MessageBody": body} for n, body in enumerate(bodies)]
    given = json.dumps({"QueueUrl": url, "Entries": entries}).encode()
    reply = raw(shop, "SendMessageBatch", given, **headers)
    return {each["Id"]: each["MessageId"] for each in reply.json()["Successful"]}


@proves("a resend of SQS")
def test_a_batch_is_claimed_once_and_a_resend_tells_the_same_ids(
    gateway: Gateway, shop: Client, sqs: Any, url: str
) -> None:
    """One row for the whole call; an entry that is refused is refused both times."""
    count = "SELECT count(*) FROM penstock.recent_sends"
    ((before,),) = gateway.db.run(count)
    first = batch(shop, url, "a", "b", "\x00", "d", **ATTEMPT)
    assert first.keys() == {"e0", "e1", "e3"}
    assert batch(shop, url, "a", "b", "\x00", "d", **ATTEMPT) == first
    assert gateway.db.run(count) == [(before + 1,)]
    other = batch(shop, url, "a", "b", "\x00", "e", **ATTEMPT)
    assert not set(other.values()) & set(first.values())
    found = received(sqs, url, 6)
    assert {each["MessageId"] for each in found} == {*first.values(), *other.values()}
    assert sorted(each["Body"] for each in found) == ["a", "a", "b", "b", "d", "e"]


@proves("a resend of SQS")
def test_a_process_that_believes_something_else_publishes_nothing_twice(
    gateway: Gateway, shop: Client, sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is the same whatever an attempt refuses, and says what the first has published."""
    monkeypatch.setattr(calls, "BELIEVED_SECONDS", 0.0)
    url = sqs.create_queue(QueueName="short")["QueueUrl"]
    first: dict[str, str] = {}
    for most in (3, 2, 4):
        _take_at_most(gateway, f"{shop.account}/short", most)
        found = batch(shop, url, "abc", "abcd", "x", **ATTEMPT)
        first = first or found
        assert found == first
        assert found.keys() == {"e0", "e2"}
    assert len(received(sqs, url, 2)) == 2
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_what_only_the_database_refuses_fails_alone(
    gateway: Gateway, shop: Client, sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The door believes that the topic takes more: the others of the call are sent all the same."""
    monkeypatch.setattr(calls, "BELIEVED_SECONDS", 3_600.0)
    url = sqs.create_queue(QueueName="short")["QueueUrl"]
    batch(shop, url, "abcd")
    _take_at_most(gateway, f"{shop.account}/short", 3)
    first = batch(shop, url, "abc", "abcd", "x", **ATTEMPT)
    assert first.keys() == {"e0", "e2"}
    assert batch(shop, url, "abc", "abcd", "x", **ATTEMPT) == first
    assert len(received(sqs, url, 3)) == 3


def _take_at_most(gateway: Gateway, topic: str, most: int) -> None:
    gateway.db.run(
        f"UPDATE penstock.topics SET max_payload_bytes = {most} WHERE address = '{topic}'"
    )
