"""Clients of a gateway that is killed: each writes down what it has sent and what it was told."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import boto3
from botocore.config import Config

from penstock.accounts import NewKey
from penstock.errors import PenstockError

ORDERS, MAILS, AGAIN = "orders", "mails", "again"
#: After a failure, as any client does.
PAUSE_SECONDS = 0.1
#: So long a message is hidden: after a killed gateway it has to come back soon.
HIDDEN_SECONDS = 1


@dataclass
class Told:
    """What was sent to one topic, and what the senders were told."""

    #: Labels that go together: all of a request are in the log, or none.
    sent: list[tuple[str, ...]] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)

    def unknown(self) -> set[str]:
        """What was sent and has got no answer."""
        return {each for labels in self.sent for each in labels} - self.answered


@dataclass
class Clients:
    """All of them, each in a thread, until they are told to stop."""

    port: Callable[[], int]
    key: NewKey
    seed: int
    told: dict[str, Told] = field(default_factory=lambda: defaultdict(Told))
    #: By label: when a receive that returned it had begun, and when its end was answered.
    handed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    finished: dict[str, float] = field(default_factory=dict)
    answers: int = 0
    failures: int = 0
    under_way: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    senders_stop: threading.Event = field(default_factory=threading.Event)
    errors: list[Exception] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Any = field(default_factory=itertools.count)

    def start(self) -> None:
        """All kinds: our API singly and in batches, an SDK that tries once and one that resends."""
        made = [self._single, self._single, self._batches, self._sqs, self._resends, self._worker]
        for number, each in enumerate(made):
            chance = random.Random(f"{self.seed} {number}")
            thread = threading.Thread(target=self._run, args=[each, chance], daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self, is_drained: Callable[[], bool], wait: Callable[..., object]) -> None:
        """Senders stop; workers go on until all is done."""
        self.senders_stop.set()
        for thread in self._threads[:-1]:
            thread.join(120)
        wait(is_drained, "all messages are finished", 60)
        self.stop.set()
        self._threads[-1].join(60)
        assert not any(each.is_alive() for each in self._threads)

    def _run(self, work: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            work(chance)
        except Exception as error:  # the test fails with it
            self.errors.append(error)

    @contextlib.contextmanager
    def _asking(self) -> Any:
        """Count what is under way, and wait a little after what has failed."""
        with self._lock:
            self.under_way += 1
        try:
            yield
            with self._lock:
                self.answers += 1
        except (OSError, http.client.HTTPException, PenstockError) as error:
            self._failed(error)
        except Exception as error:
            if not type(error).__module__.startswith("botocore"):
                raise
            self._failed(error)
        finally:
            with self._lock:
                self.under_way -= 1

    def _failed(self, _: Exception) -> None:
        with self._lock:
            self.failures += 1
        self.stop.wait(PAUSE_SECONDS)

    def _labels(self, topic: str, count: int) -> tuple[str, ...]:
        labels = tuple(f"{topic}-{next(self._numbers)}" for _ in range(count))
        self.told[topic].sent.append(labels)
        return labels

    def _single(self, _: random.Random) -> None:
        while not self.senders_stop.is_set():
            with self._asking():
                (label,) = self._labels(ORDERS, 1)
                self._post("events", label.encode(), "text/plain")
                self.told[ORDERS].answered.add(label)

    def _batches(self, chance: random.Random) -> None:
        while not self.senders_stop.is_set():
            with self._asking():
                labels = self._labels(ORDERS, chance.randint(2, 20))
                body = {"events": [{"text": each} for each in labels]}
                self._post("batches", json.dumps(body).encode(), "application/json")
                self.told[ORDERS].answered.update(labels)

    def _post(self, what: str, body: bytes, content_type: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port(), timeout=30)
        with contextlib.closing(connection):
            told = {
                "Authorization": f"Key {self.key.key_id}.{self.key.secret}",
                "Content-Type": content_type,
            }
            connection.request("POST", f"/api/v1/accounts/shop/topics/{ORDERS}/{what}", body, told)
            reply = connection.getresponse()
            reply.read()
            if reply.status != 201:
                assert reply.status in {429, 503}, reply.status
                raise http.client.HTTPException(f"{reply.status}")

    def _sqs(self, chance: random.Random) -> None:
        sqs, url = self.client(1), self.url(MAILS)
        while not self.senders_stop.is_set():
            with self._asking():
                # Each for itself: they may be in different commits.
                labels = [self._labels(MAILS, 1)[0] for _ in range(chance.randint(1, 10))]
                entries = [{"Id": str(n), "MessageBody": each} for n, each in enumerate(labels)]
                reply = sqs.send_message_batch(QueueUrl=url, Entries=entries)
                done = [labels[int(each["Id"])] for each in reply.get("Successful", [])]
                self.told[MAILS].answered.update(done)

    def _resends(self, _: random.Random) -> None:
        """An SDK with its own retries: what it returns was perhaps sent several times."""
        sqs, url = self.client(8), self.url(AGAIN)
        while not self.senders_stop.is_set():
            with self._asking():
                (label,) = self._labels(AGAIN, 1)
                sqs.send_message(QueueUrl=url, MessageBody=label)
                self.told[AGAIN].answered.add(label)

    def _worker(self, chance: random.Random) -> None:
        """Receives and deletes; some of what it has received it forgets."""
        sqs, url = self.client(1), self.url(MAILS)
        while not self.stop.is_set():
            with self._asking():
                begun = time.monotonic()
                reply = sqs.receive_message(
                    QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1,
                    VisibilityTimeout=HIDDEN_SECONDS,
                )  # fmt: skip
                for each in reply.get("Messages", []):
                    self.handed[each["Body"]].append(begun)
                    if chance.random() < 0.9 or self.senders_stop.is_set():
                        sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
                        self.finished.setdefault(each["Body"], time.monotonic())

    def client(self, attempts: int) -> Any:
        """boto3 with the key."""
        return boto3.session.Session().client(
            "sqs",
            region_name="eu-west-1",
            endpoint_url=f"http://127.0.0.1:{self.port()}",
            aws_access_key_id=self.key.key_id,
            aws_secret_access_key=self.key.secret,
            config=Config(retries={"mode": "standard", "total_max_attempts": attempts}),
        )

    def url(self, queue: str) -> str:
        """The address of a queue."""
        return f"http://127.0.0.1:{self.port()}/shop/{queue}"
