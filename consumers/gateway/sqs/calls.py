"""A call of the SQS door as its handler sees it."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from consumers.gateway.answers import Refused, as_refused
from consumers.gateway.calls import HttpCall
from consumers.gateway.sqs.attributes import FIFO_SUFFIX, LONGEST_RETENTION, effective, usual_number
from consumers.gateway.sqs.contents import MOST_BYTES
from consumers.gateway.sqs.errors import SqsError, missing
from consumers.gateway.sqs.sequences import SequenceNumbers
from penstock.database.steps import run
from penstock.errors import PenstockError, TopicNotFound
from penstock.publishing.known_topics import known_topics
from penstock.subscriptions import labels, queue

T = TypeVar("T")

#: So long a process believes what it has read of a queue's attributes. AWS says 60 seconds.
BELIEVED_SECONDS = 5.0
_MOST_BELIEVED = 10_000
#: Addresses of queues are remembered, so a caller may not choose how much that is.
LONGEST_URL = 2_048
_UNKNOWN, _NOT_FOUND = 401, 404
_KINDS = {413: "RequestEntityTooLarge", 429: "RequestThrottled", 503: "ServiceUnavailable"}


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What the door keeps about a queue; times as seconds since 1970."""

    attributes: Mapping[str, str]
    tags: Mapping[str, str]
    created_at: int
    changed_at: int
    purged_at: float = 0.0
    is_fifo: bool = False
    #: What its topic takes.
    max_payload_bytes: int = MOST_BYTES

    def effective(self) -> dict[str, str]:
        """All attributes, as told or as usual."""
        return effective(self.attributes, is_fifo=self.is_fifo)

    def number(self, name: str) -> int:
        """An attribute that is a whole number."""
        told = self.attributes.get(name)
        return int(told) if told else usual_number(name)

    def labels(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "attributes": dict(self.attributes),
            "tags": dict(self.tags),
            "purged_at": self.purged_at,
        }


class KnownQueues:
    """Facts of queues that were read a moment ago."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], tuple[float, QueueFacts]] = OrderedDict()

    def get(self, account_id: str, address: str) -> QueueFacts | None:
        """What is known; None when it has to be read."""
        until, facts = self._known.get((account_id, address), (0.0, None))
        return facts if until > time.monotonic() else None

    def put(self, account_id: str, address: str, facts: QueueFacts | None) -> None:
        """What was read, or None after a change."""
        self._known.pop((account_id, address), None)
        if facts is not None:
            self._known[account_id, address] = (time.monotonic() + BELIEVED_SECONDS, facts)
            if len(self._known) > _MOST_BELIEVED:
                self._known.popitem(last=False)


@dataclass(frozen=True, slots=True)
class SqsCall:
    """One call: its parameters, and by which name and region the caller knows the gateway."""

    http: HttpCall
    known: KnownQueues
    numbers: SequenceNumbers
    given: Mapping[str, Any]
    base: str
    region: str
    operation: str
    #: Of its whole body.
    digest: str

    @property
    def account(self) -> str:
        """The account that calls."""
        return self.http.caller.account

    def name(self) -> str:
        """The queue of the call: of its address only the path counts."""
        given = self.given.get("QueueUrl")
        if not isinstance(given, str) or not given:
            raise missing("QueueUrl")
        if len(given) > LONGEST_URL:
            raise no_such_queue()
        account, name = _places(given)
        if account != self.account:
            raise no_such_queue()
        only = self.http.caller.queue
        if only is not None and only != name:
            raise SqsError("AccessDenied", "The key is for another queue.")
        return name

    def address(self) -> str:
        """The same, as the log knows it."""
        return f"{self.account}/{self.name()}"

    @property
    def is_fifo(self) -> bool:
        """Whether the queue of the call is a FIFO queue: its name says so."""
        return self.name().endswith(FIFO_SUFFIX)

    def url(self, name: str) -> str:
        """The address of a queue for SDKs."""
        return f"{self.base}/{self.account}/{name}"

    def arn(self, name: str) -> str:
        """The other name of a queue."""
        return f"arn:aws:sqs:{self.region}:{self.account}:{name}"

    def number(self, name: str, usual: int, lowest: int, highest: int) -> int:
        """A whole number among the parameters."""
        value = self.given.get(name, usual)
        if not isinstance(value, int) or not lowest <= value <= highest:
            raise SqsError(
                "InvalidParameterValue",
                f"Value {str(value)[:40]} for parameter {name} is invalid."
                f" Reason: Must be between {lowest} and {highest}.",
            )
        return value

    def texts(self, *names: str) -> list[str]:
        """The texts of lists among the parameters."""
        found: list[str] = []
        for name in names:
            value = self.given.get(name) or []
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise SqsError("MalformedInput", f"{name} is a list of texts.")
            found += value
        return found

    async def run(self, work: Callable[[Any], T]) -> T:
        """What ``work`` returns, in a transaction of the account."""
        return await self.http.run(work)

    async def facts(self) -> QueueFacts:
        """What the door keeps about the queue of the call."""
        address, account_id = self.address(), self.http.caller.principal.account_id
        found = self.known.get(account_id, address)
        if found is None:
            found = await self.run(lambda connection: facts_of(connection, address))
            self.known.put(account_id, address, found)
        return found

    def forget(self) -> None:
        """Read the facts anew next time."""
        self.known.put(self.http.caller.principal.account_id, self.address(), None)


@lru_cache(maxsize=4_096)
def _places(url: str) -> tuple[str, str]:
    """The account and the name of a queue by its address; of what is none, nobody's."""
    try:
        path = urlsplit(url).path
    except ValueError:
        return "", ""
    parts = [unquote(each) for each in path.split("/") if each]
    account, name = ["", "", *parts][-2:]
    return account, name


SqsHandler = Callable[[SqsCall], Awaitable[dict[str, Any]]]


def facts_of(connection: Any, address: str) -> QueueFacts:
    """What the door keeps about a queue, which has to be there."""
    found = labels.labels_of(connection, address)
    told = found.labels
    settings = queue.describe(connection, address)
    attributes = {
        "VisibilityTimeout": str(int(settings.visibility_seconds)),
        # One that keeps its messages for ever tells the longest that SQS knows.
        "MessageRetentionPeriod": str(int(settings.retention_seconds or LONGEST_RETENTION)),
    }
    return QueueFacts(
        told.get("attributes", {}) | attributes,
        told.get("tags", {}),
        int(found.created_at.timestamp()) if found.created_at else 0,
        int(found.changed_at.timestamp()) if found.changed_at else 0,
        float(told.get("purged_at", 0)),
        address.endswith(FIFO_SUFFIX),
        _max_payload_bytes(connection, address),
    )


def _max_payload_bytes(connection: Any, topic: str) -> int:
    try:
        return run(connection, known_topics(connection).looked_up(topic)).max_payload_bytes
    except TopicNotFound:
        return MOST_BYTES  # it was deleted beside its queue: a send says so


def locked_facts_of(connection: Any, address: str) -> QueueFacts:
    """The same, for whoever changes them: others who do so wait for this transaction."""
    queue.configure(connection, address)  # it locks the queue, also where it sets nothing
    return facts_of(connection, address)


def no_such_queue() -> SqsError:
    """The same for one that is missing and one of somebody else."""
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


def as_sqs_error(error: Exception) -> SqsError | None:
    """An error as SDKs know it; None for a bug, and when nobody is there."""
    if isinstance(error, SqsError):
        return error
    problem = error if isinstance(error, Refused) else as_refused(error)
    if problem is None:
        return None
    if problem.status == _UNKNOWN:
        return denied()
    if problem.status == _NOT_FOUND:
        return no_such_queue()
    kind = _KINDS.get(problem.status, "InvalidParameterValue")
    message = error.message if isinstance(error, PenstockError) else problem.message
    return SqsError(kind, message, problem.headers)


def denied() -> SqsError:
    """The answer to credentials that are not good: it says no more."""
    return SqsError("AccessDenied", "The key or the signature of this request is not good.")
