"""Move tasks of the SQS door: asked for by an account, done by the sweep."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.subscriptions import forwarding, letter_moves
from penstock.upkeep.sweeping import sweep
from tests.contract.gateway.kit import Client, Gateway
from tests.contract.gateway.sqs_kit import received, refused, sqs_of
from tests.kit.proof import proves

pytestmark = pytest.mark.usefixtures("sequencing")


class Queues:
    """A queue with a queue for its dead letters."""

    def __init__(self, sqs: Any, url: str, client: Client) -> None:
        self.sqs, self.url, self.client = sqs, url, client
        self.dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
        self.arn = self.arn_of("dead")
        policy = json.dumps({"deadLetterTargetArn": self.arn, "maxReceiveCount": 1})
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})

    def arn_of(self, name: str) -> str:
        return f"arn:aws:sqs:eu-west-1:{self.client.account}:{name}"

    def bury(self, *bodies: str) -> None:
        """Send messages, and let each become a dead letter."""
        for body in bodies:
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body)
        for each in received(self.sqs, self.url, len(bodies)):
            self.sqs.change_message_visibility(
                QueueUrl=self.url, ReceiptHandle=each["ReceiptHandle"], VisibilityTimeout=0
            )
        for each in received(self.sqs, self.dead, len(bodies)):
            self.sqs.change_message_visibility(
                QueueUrl=self.dead, ReceiptHandle=each["ReceiptHandle"], VisibilityTimeout=0
            )

    def tasks(self) -> Any:
        return self.sqs.list_message_move_tasks(SourceArn=self.arn, MaxResults=10)["Results"]


@pytest.fixture
def queues(sqs: Any, url: str, shop: Client) -> Queues:
    return Queues(sqs, url, shop)


@proves("a move of letters")
def test_a_task_takes_letters_back_to_their_queue_alone(
    queues: Queues, gateway: Gateway, sqs: Any, url: str
) -> None:
    """And the count of receives goes on; whatever else reads the topic sees nothing of it."""
    queues.bury("a", "b", "c")
    begun = sqs.start_message_move_task(SourceArn=queues.arn)
    again = refused(sqs.start_message_move_task, SourceArn=queues.arn)
    assert again[0] == "AWS.SimpleQueueService.UnsupportedOperation"
    (running,) = queues.tasks()
    assert (running["Status"], running["TaskHandle"]) == ("RUNNING", begun["TaskHandle"])
    assert running["ApproximateNumberOfMessagesToMove"] == 3
    before = len(queues.client("GET", "/topics/mails/events?from=1").json())
    assert sweep(gateway.owner).moved_letters == 3
    (done,) = queues.tasks()
    assert (done["Status"], done["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 3)
    assert "TaskHandle" not in done
    found = received(sqs, url, 3, AttributeNames=["ApproximateReceiveCount"])
    assert sorted(each["Body"] for each in found) == ["a", "b", "c"]
    assert {each["Attributes"]["ApproximateReceiveCount"] for each in found} == {"2"}
    assert "Messages" not in sqs.receive_message(QueueUrl=queues.dead)
    assert len(queues.client("GET", "/topics/mails/events?from=1").json()) == before
    gone = refused(sqs.cancel_message_move_task, TaskHandle=begun["TaskHandle"])
    assert gone[0] in {"ResourceNotFoundException", "ResourceNotFound"}


def test_a_task_with_a_destination_publishes_there_at_its_rate(
    queues: Queues, gateway: Gateway, sqs: Any
) -> None:
    """The rate is that of the database's clock: one that began long ago may go on at once."""
    other = sqs.create_queue(QueueName="other")["QueueUrl"]
    queues.bury("a", "b", "c")
    given = {"SourceArn": queues.arn, "DestinationArn": queues.arn_of("other")}
    handle = sqs.start_message_move_task(MaxNumberOfMessagesPerSecond=1, **given)["TaskHandle"]
    _began(gateway, 1.2)
    assert sweep(gateway.owner).moved_letters == 1
    (running,) = queues.tasks()
    assert running["DestinationArn"] == given["DestinationArn"]
    assert (running["Status"], running["ApproximateNumberOfMessagesMoved"]) == ("RUNNING", 1)
    assert [each["Body"] for each in received(sqs, other)] == ["a"]
    ended = sqs.cancel_message_move_task(TaskHandle=handle)
    assert ended["ApproximateNumberOfMessagesMoved"] == 1
    assert queues.tasks()[0]["Status"] == "CANCELLED"
    _began(gateway, 100)
    assert sweep(gateway.owner).moved_letters == 0


def test_a_message_without_a_source_ends_the_task_after_those_before_it(
    queues: Queues, gateway: Gateway, sqs: Any
) -> None:
    queues.bury("a", "b")
    sqs.send_message(QueueUrl=queues.dead, MessageBody="sent here")
    gateway.sequence()
    sqs.start_message_move_task(SourceArn=queues.arn)
    assert sweep(gateway.owner).moved_letters == 2
    (failed,) = queues.tasks()
    assert (failed["Status"], failed["FailureReason"]) == ("FAILED", letter_moves.NO_SOURCE)
    assert [each["Body"] for each in received(sqs, queues.dead)] == ["sent here"]


@proves("a move of letters")
def test_a_sweep_that_dies_in_the_middle_leaves_all_for_the_next(
    queues: Queues, gateway: Gateway, sqs: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: events are handed out, moved and counted in one transaction."""
    queues.bury("a", "b")
    sqs.start_message_move_task(SourceArn=queues.arn)

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(letter_moves, "_note", dies)
        with pytest.raises(KeyboardInterrupt):
            letter_moves.work(gateway.owner)
    assert queues.tasks()[0]["ApproximateNumberOfMessagesMoved"] == 0
    assert letter_moves.work(gateway.owner) == 2
    assert len(received(sqs, url, 2)) == 2
    assert queues.tasks()[0]["Status"] == "COMPLETED"


def test_who_may_and_what_is_refused(queues: Queues, sqs: Any, shop: Client, bank: Client) -> None:
    start = sqs.start_message_move_task
    assert refused(start, SourceArn=queues.arn_of("mails"))[0] == "InvalidParameterValue"
    assert refused(start, SourceArn="mails")[0] == "InvalidParameterValue"
    too_fast = {"SourceArn": queues.arn, "MaxNumberOfMessagesPerSecond": 501}
    assert refused(start, **too_fast)[0] == "InvalidParameterValue"
    nowhere = {"SourceArn": queues.arn, "DestinationArn": queues.arn_of("none")}
    assert refused(start, **nowhere)[0].endswith("NonExistentQueue")
    itself = {"SourceArn": queues.arn, "DestinationArn": queues.arn}
    assert refused(start, **itself)[0] == "InvalidParameterValue"
    handle = start(SourceArn=queues.arn)["TaskHandle"]
    foreign = sqs_of(bank)
    assert refused(foreign.start_message_move_task, SourceArn=queues.arn)[2] == 404
    assert refused(foreign.list_message_move_tasks, SourceArn=queues.arn)[2] == 404
    assert refused(foreign.cancel_message_move_task, TaskHandle=handle)[2] == 400
    assert refused(sqs.cancel_message_move_task, TaskHandle="x")[0] == "InvalidParameterValue"
    assert sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"] == 0


@proves("a move of letters", guard="may_forward")
def test_a_right_that_was_taken_away_ends_the_move(
    queues: Queues, gateway: Gateway, sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: may_forward of next_letter_move.  The sweep itself may do everything."""
    sqs.create_queue(QueueName="other")
    queues.bury("a")
    sqs.start_message_move_task(SourceArn=queues.arn, DestinationArn=queues.arn_of("other"))
    gateway.db.run("UPDATE penstock.letter_moves SET requested_by = 'account:gone'")
    monkeypatch.setattr(forwarding, "move", lambda *_, **__: pytest.fail("it was moved"))
    assert sweep(gateway.owner).moved_letters == 0
    assert queues.tasks()[0]["Status"] == "FAILED"


def _began(gateway: Gateway, seconds: float) -> None:
    """Let the moves that run have begun so long ago."""
    ago = {"postgres": f"clock_timestamp() - interval '{seconds} s'"}.get(
        gateway.db.engine, f"UTC_TIMESTAMP(6) - INTERVAL {int(seconds * 1000)}000 MICROSECOND"
    )
    gateway.db.run(f"UPDATE penstock.letter_moves SET started_at = {ago} WHERE ended_at IS NULL")
