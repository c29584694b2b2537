"""One SQS queue against a small model of it: Hypothesis chooses what is called, and in which order.

Nothing here waits for a time: what is hidden stays hidden until it is put back.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from penstock.subscriptions import queue
from tests.contract.gateway.kit import Gateway
from tests.contract.gateway.sqs_kit import refused
from tests.kit.proof import proves

_numbers = itertools.count(1)
_COUNTS = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
_HIDDEN = 43_200
#: Which one of those there are.  How many there are is the queue's choice: no draw depends on it.
PLACES = st.integers(0, 1_000)


class OneQueue(RuleBasedStateMachine):
    """What a queue has: bodies that are ready, and those in hand with their handles."""

    gateway: Gateway
    sqs: Any

    def __init__(self) -> None:
        super().__init__()
        made = self.sqs.create_queue(
            QueueName=f"q{next(_numbers)}", Attributes={"VisibilityTimeout": str(_HIDDEN)}
        )
        self.url: str = made["QueueUrl"]
        self.ready: dict[str, int] = {}
        self.held: dict[str, tuple[str, int]] = {}
        #: Handles of messages that are finished, or were handed out again since.
        self.dead: list[str] = []

    @rule(count=st.integers(1, 4))
    def send(self, count: int) -> None:
        """Several at once; each is there as soon as it has its sequence."""
        bodies = [f"m{next(_numbers)}" for _ in range(count)]
        entries = [{"Id": str(place), "MessageBody": body} for place, body in enumerate(bodies)]
        answer = self.sqs.send_message_batch(QueueUrl=self.url, Entries=entries)
        assert len(answer["Successful"]) == count
        self.gateway.sequence()
        self.ready |= dict.fromkeys(bodies, 0)

    @rule(most=st.integers(1, 10))
    def receive(self, most: int) -> None:
        """Some of what is ready, each with the count of its receives."""
        answer = self.sqs.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=most,
            AttributeNames=["ApproximateReceiveCount"],
        )
        found = answer.get("Messages", [])
        assert bool(found) == bool(self.ready)
        assert len(found) <= most
        assert "Messages" not in answer or found
        for each in found:
            times = self.ready.pop(each["Body"]) + 1
            assert each["Attributes"] == {"ApproximateReceiveCount": str(times)}
            self.held[each["Body"]] = (each["ReceiptHandle"], times)

    @rule(place=PLACES, in_batch=st.booleans())
    def delete(self, place: int, in_batch: bool) -> None:
        """What is in hand is finished."""
        if not self.held:
            return
        handle, _ = self.held.pop(sorted(self.held)[place % len(self.held)])
        self.finish(handle, in_batch=in_batch)
        self.dead.append(handle)

    @rule(place=PLACES, in_batch=st.booleans())
    def delete_again(self, place: int, in_batch: bool) -> None:
        """A dead handle is no error, and changes nothing."""
        if self.dead:
            self.finish(self.dead[place % len(self.dead)], in_batch=in_batch)

    @rule(place=PLACES, seconds=st.sampled_from([0, 100, _HIDDEN]))
    def change(self, place: int, seconds: int) -> None:
        """More time keeps the handle; none puts the message back."""
        if not self.held:
            return
        body = sorted(self.held)[place % len(self.held)]
        handle, times = self.held[body]
        self.sqs.change_message_visibility(
            QueueUrl=self.url, ReceiptHandle=handle, VisibilityTimeout=seconds
        )
        if not seconds:
            del self.held[body]
            self.ready[body] = times
            self.dead.append(handle)

    @rule(place=PLACES, seconds=st.sampled_from([0, 100]))
    def change_dead(self, place: int, seconds: int) -> None:
        """A dead handle gives no more time."""
        if not self.dead:
            return
        code = refused(
            self.sqs.change_message_visibility,
            QueueUrl=self.url,
            ReceiptHandle=self.dead[place % len(self.dead)],
            VisibilityTimeout=seconds,
        )
        assert code[0] == "InvalidParameterValue"

    @rule()
    def count(self) -> None:
        """The counts are those of the model."""
        told = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=_COUNTS)
        assert [int(told["Attributes"][name]) for name in _COUNTS] == [
            len(self.ready),
            len(self.held),
        ]

    def finish(self, handle: str, *, in_batch: bool) -> None:
        """Delete by a handle."""
        if in_batch:
            entries = [{"Id": "a", "ReceiptHandle": handle}]
            answer = self.sqs.delete_message_batch(QueueUrl=self.url, Entries=entries)
            assert answer["Successful"] == [{"Id": "a"}]
            assert "Failed" not in answer
        else:
            self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=handle)


@proves("a queue of SQS against a model")
@pytest.mark.parametrize(
    ("examples", "steps"), [(5, 12), pytest.param(100, 40, marks=pytest.mark.long)]
)
def test_a_queue_does_what_its_model_does(
    gateway: Gateway, sqs: Any, examples: int, steps: int
) -> None:
    run(gateway, sqs, examples, steps)


@proves("a queue of SQS against a model", guard="the handle is kept")
def test_a_door_that_does_not_keep_handles_is_noticed(
    gateway: Gateway, sqs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: ChangeMessageVisibility spends the handle."""
    real = queue.extend

    def spends(*given: Any, **_: Any) -> Any:
        return real(*given)

    monkeypatch.setattr(queue, "extend", spends)
    with pytest.raises(Exception):  # noqa: B017 - whichever rule meets it first
        run(gateway, sqs, 20, 20)


def run(gateway: Gateway, sqs: Any, examples: int, steps: int) -> None:
    """So many queues, each with so many calls."""
    machine = type("Machine", (OneQueue,), {"gateway": gateway, "sqs": sqs})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
