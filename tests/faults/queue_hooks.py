"""What worker processes of queues add to Penstock's calls: records of what was asked and answered.

As in :mod:`tests.faults.hooks` the functions of :mod:`penstock.queue` are replaced by ones that
write down before anything else looks at the answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from penstock.database.steps import Steps
from penstock.errors import PenstockError, StaleReceipt
from penstock.subscriptions import queue
from penstock.subscriptions.queue import Delivery, Receipt
from tests.faults.history import Recorder
from tests.faults.hooks import label_of

#: The partitions of the queues' topic in histories: the streams' topic has those below.
FIRST_PARTITION = 100


def told(delivery: Delivery, visibility_seconds: float) -> list[Any]:
    """A delivery in a record: the database read its clock when it made it."""
    event, deadline = delivery.event, delivery.deadline.timestamp()
    return [
        event.partition + FIRST_PARTITION, event.sequence, label_of(event), event.key,
        str(delivery.receipt), delivery.deliveries, delivery.failures,
        deadline - visibility_seconds, deadline,
    ]  # fmt: skip


class Calls:
    """Calls with receipts, each with a number, so that its outcome is found."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._numbers = count(1)

    def begin(self, how: str, receipt: Receipt, **fields: Any) -> dict[str, Any]:
        """It is about to be sent."""
        call = {"how": how, "receipt": str(receipt), "call": next(self._numbers)}
        self.recorder.write("finish", "invoke", **call, **fields)
        return call

    def end(self, st: str, call: dict[str, Any], **fields: Any) -> None:
        """Its outcome."""
        self.recorder.write("finish", st, **call, **fields)

    def fail(self, calls: Iterable[dict[str, Any]], error: BaseException) -> None:
        """It raised: what Penstock refuses was not done, and of the rest nobody knows."""
        st = "fail" if isinstance(error, PenstockError) else "info"
        for call in calls:
            self.end(st, call, error=type(error).__name__)


class RecordedQueue:
    """Penstock's calls of queues in this process, written down.

    What a handler's transaction finishes is accepted when its COMMIT is: who ends it writes the
    outcome with :meth:`committed`.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.calls = Calls(recorder)
        self._of_thread = threading.local()
        for name in ("receive", "extend", "acknowledge_steps"):
            setattr(queue, name, getattr(self, f"_{name}")(getattr(queue, name)))
        for name in ("acknowledge", "reject", "release"):
            setattr(queue, name, self._settling(name, getattr(queue, name)))

    @property
    def receipt(self) -> str:
        """The one that the present transaction of this thread uses."""
        return str(self._of_thread.call["receipt"])

    def committed(self, st: str, **fields: Any) -> None:
        """What became of this thread's last transaction."""
        call, self._of_thread.call = getattr(self._of_thread, "call", None), None
        if call is not None:
            self.calls.end(st, call, **fields)

    def _receive(self, call: Callable[..., list[Delivery]]) -> Callable[..., list[Delivery]]:
        def recorded(
            connection: Any, subscription: str, max_events: int, *, visibility_seconds: float
        ) -> list[Delivery]:
            self.calls.recorder.write("receive", "invoke", sub=subscription)
            found = call(
                connection, subscription, max_events, visibility_seconds=visibility_seconds
            )
            events = [told(each, visibility_seconds) for each in found]
            self.calls.recorder.write("hand_out", "ok", sub=subscription, events=events)
            return found

        return recorded

    def _extend(self, call: Callable[..., list[Receipt]]) -> Callable[..., list[Receipt]]:
        def recorded(
            connection: Any,
            subscription: str,
            receipts: Iterable[Receipt],
            seconds: float,
            **options: Any,
        ) -> list[Receipt]:
            given = list(receipts)
            calls = [self.calls.begin("extend", each, seconds=seconds) for each in given]
            try:
                renewed = call(connection, subscription, given, seconds, **options)
            except BaseException as error:
                self.calls.fail(calls, error)
                raise
            for each, new in zip(calls, renewed, strict=True):
                self.calls.end("ok", each, renewed=str(new))
            return renewed

        return recorded

    def _settling(self, how: str, call: Callable[..., list[bool]]) -> Callable[..., list[bool]]:
        def recorded(
            connection: Any, subscription: str, receipts: Iterable[Receipt], **options: Any
        ) -> list[bool]:
            given = list(receipts)
            calls = [self.calls.begin(how, each) for each in given]
            try:
                answers = call(connection, subscription, given, **options)
            except BaseException as error:
                self.calls.fail(calls, error)
                raise
            for each, good in zip(calls, answers, strict=True):
                fields = {} if good else {"error": StaleReceipt.__name__}
                self.calls.end("ok" if good else "fail", each, **fields)
            return answers

        return recorded

    def _acknowledge_steps(self, call: Callable[..., Steps[None]]) -> Callable[..., Steps[None]]:
        def recorded(subscription: str, receipts: Sequence[Receipt]) -> Steps[None]:
            (receipt,) = receipts
            self._of_thread.call = self.calls.begin("acknowledge", receipt)
            yield from call(subscription, receipts)

        return recorded
