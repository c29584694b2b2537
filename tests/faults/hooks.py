"""What the worker processes of fault tests add to Penstock's calls: records and failpoints.

The product has no hooks for this.  A worker replaces the functions of :mod:`penstock.stream` by
ones that write down what they were asked and answered, before anything else looks at it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from penstock.database.steps import Steps
from penstock.errors import PenstockError
from penstock.records import Event, Lease
from penstock.subscriptions import stream
from tests.faults.history import Recorder


class Failpoints:
    """Named places where a process ends, stops or waits, at the n-th time that it comes by.

    ``commit.before=kill@3``, ``handle.after=stop@2``, ``handle.before=sleep:1.5@1``.
    """

    def __init__(self, texts: list[str], recorder: Recorder) -> None:
        self._recorder = recorder
        self._hits: Counter[str] = Counter()
        self._wanted: dict[str, tuple[str, int]] = {}
        for text in texts:
            name, _, rest = text.partition("=")
            action, _, number = rest.partition("@")
            self._wanted[name] = action, int(number or 1)

    def hit(self, name: str) -> None:
        """The process is at this place."""
        self._hits[name] += 1
        action, number = self._wanted.get(name, ("", 0))
        if self._hits[name] != number:
            return
        self._recorder.write("failpoint", "ok", name=name, action=action)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "stop":
            # To this thread: one that is sent to the process may find it some statements later.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        elif action == "exit":
            os._exit(9)
        else:
            time.sleep(float(action.removeprefix("sleep:")))


def label_of(event: Event) -> str:
    """The name that its publisher gave an event: what its payload begins with."""
    return bytes(event.payload).partition(b" ")[0].decode()


def _who(member: stream.Membership) -> dict[str, str]:
    return {"sub": member.subscription, "consumer": member.consumer}


class Recorded:
    """Penstock's stream calls in this process, written down.

    A commit inside a transaction is not accepted before its COMMIT is: then ``in_transaction`` is
    set, and who ends the transaction writes the outcome with :meth:`committed`.
    """

    def __init__(
        self, recorder: Recorder, failpoints: Failpoints, *, in_transaction: bool = False
    ) -> None:
        self.recorder = recorder
        self.failpoints = failpoints
        self.in_transaction = in_transaction
        self._of_thread = threading.local()  # a handler that hangs has a commit of its own
        for name in ("join", "heartbeats", "check_in", "leave", "poll", "commit_steps"):
            setattr(stream, name, getattr(self, f"_{name}")(getattr(stream, name)))

    def committed(self, st: str, **fields: Any) -> None:
        """What became of the last commit's transaction."""
        for each in getattr(self._of_thread, "commits", []):
            self.recorder.write("commit", st, **each, **fields)
        self._of_thread.commits = []

    def _membership(self, op: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(connection: Any, member: stream.Membership, **options: Any) -> Any:
            begun = self.recorder.begun()
            answer = call(connection, member, **options)
            self.recorder.write(op, "ok", **_who(member), **begun)
            return answer

        return recorded

    def _heartbeats(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(
            connection: Any, members: list[stream.Membership], **options: Any
        ) -> list[stream.Beat]:
            begun = self.recorder.begun()
            answer: list[stream.Beat] = call(connection, members, **options)
            for member, beat in zip(members, answer, strict=True):
                if beat.standing == "member":
                    self.recorder.write("heartbeat", "ok", **_who(member), **begun)
            return answer

        return recorded

    def _check_in(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return self._membership("check_in", call)

    def _leave(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return self._membership("leave", call)

    def _join(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(
            connection: Any, subscription: str, consumer: str, *more: Any, **options: Any
        ) -> Any:
            begun = self.recorder.begun()
            answer = call(connection, subscription, consumer, *more, **options)
            self.recorder.write("join", "ok", sub=subscription, consumer=consumer, **begun)
            return answer

        return recorded

    def _poll(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(
            connection: Any, member: stream.Membership, leases: Any, *more: Any, **options: Any
        ) -> Any:
            begun = self.recorder.begun()
            answer = call(connection, member, leases, *more, **options)
            for lease, events in answer:
                read = [[event.sequence, label_of(event)] for event in events]
                self.recorder.write(
                    "poll", "ok", sub=member.subscription, partition=lease.partition,
                    epoch=lease.lease_epoch, events=read, **begun,
                )  # fmt: skip
            return answer

        return recorded

    def _commit_steps(self, call: Callable[..., Steps[None]]) -> Callable[..., Steps[None]]:
        def recorded(
            member: stream.Membership, wanted: Sequence[tuple[Lease, int]], *more: Any
        ) -> Steps[None]:
            begun = self.recorder.begun()
            self._of_thread.commits = [
                {
                    "sub": member.subscription, "partition": lease.partition,
                    "epoch": lease.lease_epoch, "position": position, **begun,
                }
                for lease, position in wanted
            ]  # fmt: skip
            for each in self._of_thread.commits:
                self.recorder.write("commit", "invoke", **each)
            if not self.in_transaction:
                self.failpoints.hit("commit.before")
            try:
                yield from call(member, wanted, *more)
            except Exception as error:
                known = self.in_transaction or isinstance(error, PenstockError)
                self.committed("fail" if known else "info", error=type(error).__name__)
                raise
            if not self.in_transaction:
                self.committed("ok")
                self.failpoints.hit("commit.after")

        return recorded
