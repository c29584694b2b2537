"""Changes of one queue of the SQS door at the same time: none is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pymysql
import pytest
from botocore.exceptions import ClientError

from penstock import database
from penstock.subscriptions import labels, queue
from tests.contract.gateway.kit import Client, Gateway
from tests.contract.gateway.sqs_kit import received, refused, sqs_of
from tests.kit.log import wait_until

_BLOCKED = {
    "postgres": "SELECT 1 FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
}
_BLOCKED_IN_MYSQL = "SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"

DEADLOCKS = {
    "postgres": psycopg.errors.DeadlockDetected("deadlock detected"),
    "mysql": pymysql.err.OperationalError(1213, "Deadlock found when trying to get lock"),
}


def _beside(gateway: Gateway, shop: Client, call: Callable[[], Any]) -> Any:
    """What a call says that comes while another change is under way: a tag, and a purge."""
    holder = gateway.db.connect(autocommit=False)
    told = {"attributes": {"DelaySeconds": "7"}, "tags": {"a": "1"}, "purged_at": time.time()}
    labels.label(holder, f"{shop.account}/mails", told)

    def is_blocked() -> object:
        time.sleep(0.12)  # InnoDB makes the table anew when nobody has read it for so long
        return gateway.db.run(_BLOCKED.get(gateway.db.engine, _BLOCKED_IN_MYSQL))

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(call)
        wait_until(is_blocked, "the call waits for the other change")
        holder.commit()
        return answer.result()


def test_tags_at_once_are_all_kept(gateway: Gateway, sqs: Any, url: str, shop: Client) -> None:
    """Guard: locked_facts_of reads what it changes under the queue's lock."""
    _beside(gateway, shop, lambda: sqs.tag_queue(QueueUrl=url, Tags={"b": "2"}))
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "1", "b": "2"}


def test_attributes_beside_tags(gateway: Gateway, sqs: Any, url: str, shop: Client) -> None:
    """Guard: as above."""
    given = {"VisibilityTimeout": "9"}
    _beside(gateway, shop, lambda: sqs.set_queue_attributes(QueueUrl=url, Attributes=given))
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "1"}
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (found["VisibilityTimeout"], found["DelaySeconds"]) == ("9", "7")


def test_of_two_purges_one_is_refused(gateway: Gateway, sqs: Any, url: str, shop: Client) -> None:
    """Guard: as above."""

    def purge() -> None:
        sqs.purge_queue(QueueUrl=url)

    with pytest.raises(ClientError, match="PurgeQueueInProgress"):
        _beside(gateway, shop, purge)


@pytest.mark.usefixtures("sequencing")
def test_changes_that_ended_a_deadlock_are_made_one_by_one(
    gateway: Gateway, sqs: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each timeout locks its own messages, so two batches can lock theirs in crossed order."""
    sqs.send_message_batch(
        QueueUrl=url, Entries=[{"Id": str(n), "MessageBody": str(n)} for n in range(2)]
    )
    real, seconds = queue.extend, []

    def extend(connection: Any, *given: Any, **more: Any) -> Any:
        seconds.append(given[2])
        if len(seconds) == 2:
            raise DEADLOCKS[database.dialect_of(connection)]
        return real(connection, *given, **more)

    monkeypatch.setattr(queue, "extend", extend)
    entries = [
        {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"], "VisibilityTimeout": 60 + n}
        for n, each in enumerate(received(sqs, url, 2))
    ]
    made = sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in made["Successful"]] == ["0", "1"]
    assert sorted(seconds) == [60, 60, 61, 61]


def test_a_key_of_one_queue_sends_its_dead_letters_to_no_other(
    gateway: Gateway, sqs: Any, url: str, shop: Client
) -> None:
    """Guard: the look at the key's queue in _keep.  Else it publishes where it may not."""
    sqs.create_queue(QueueName="other")
    limited = sqs_of(gateway.client(shop.account, levels="gc", queue="mails"))
    arn = f"arn:aws:sqs:eu-west-1:{shop.account}:other"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    given = {"QueueUrl": url, "Attributes": {"RedrivePolicy": policy}}
    assert refused(limited.set_queue_attributes, **given)[0] == "InvalidParameterValue"
    sqs.set_queue_attributes(**given)
