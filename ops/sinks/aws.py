"""Amazon SQS queues and SNS topics: every event at least once, and in order where they are FIFO.

Neither tells what it holds, so a block whose relay was killed is sent again by its successor. What
is doubled lies in that block. A FIFO queue or topic drops it within five minutes by the event's id.

A call has up to ten events, and AWS answers for each of them. What it took is not sent again with
those that it did not take. A call to a FIFO queue holds at most one event of a key: if AWS took the
later one of two and not the earlier one, they would change places.

Logins, regions' endpoints and certificates are those of boto3: environment, files or the role of
the machine.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import SplitResult, unquote
from uuid import UUID

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)

from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    SinkLease,
    SinkMisconfigured,
    SinkUnavailable,
    encoded,
)
from ops.sinks.cloudevents import CONTENT_TYPE, DEFAULT_TYPE, source, to_json
from ops.sinks.lanes import Lanes
from ops.sinks.options import options_of
from ops.sinks.sent import SentEvents, left
from penstock.errors import ConfigurationError, SinkError
from penstock.log.restores import Seen
from penstock.records import Event

SQS_BYTES = 1 << 20
SNS_BYTES = 256 << 10

_ENTRIES = 10
_CALLS_AT_A_TIME = 4
_SECONDS = 20
_OWNER = re.compile(r"\d{12}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}(?:\.fifo)?")
_GROUP = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,./:;<=>?@\[\\\]^_`{|}~-]{1,128}")
_SQS_FORM = "sqs://REGION/[ACCOUNT/]QUEUE[?endpoint=URL]"
_SNS_FORM = "sns://REGION/ACCOUNT/TOPIC[?endpoint=URL]"
#: Errors that stay until a person changes something.
_SETUP = re.compile(
    "(?i)^(?!.*throttl).*(?:denied|unauthori|credential|signature|token|accesskey|notfound|nonexistent|doesnotexist|"
    "InvalidAddress|OptInRequired|Kms|InvalidSecurity)"
)
#: Errors of a whole call that one of its events causes.
_EVENT = re.compile(r"InvalidMessageContents|InvalidParameter|InvalidBatchEntry|TooLong|TooLarge")
_CHECK = "check the region, the name, and the login's right to send there"


class AwsPlace(Protocol):
    """A queue or a topic: how events are handed to it."""

    name: str
    said: str
    limit: int

    def prepare(self) -> None:
        """Ask for what sending needs to know."""

    def entry(self, body: str) -> dict[str, Any]:
        """The field that holds an event."""

    def send(self, entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Send up to ten, and return those that were not taken."""


class SqsQueue:
    """A queue, by its name and, if it is another account's, its owner."""

    name = "sqs"

    def __init__(self, client: Any, queue: str, owner: str) -> None:
        self.said = queue
        self.limit = SQS_BYTES
        self._client = client
        self._query = {"QueueName": queue} | ({"QueueOwnerAWSAccountId": owner} if owner else {})
        self._url = ""

    def prepare(self) -> None:
        """The queue's URL, and the largest message that it takes."""
        url = self._client.get_queue_url(**self._query)["QueueUrl"]
        wanted = "MaximumMessageSize"
        try:
            found = self._client.get_queue_attributes(QueueUrl=url, AttributeNames=[wanted])
        except ClientError as error:  # who may send may not always read
            if "AccessDenied" not in _code(error):
                raise
            found = {}
        self.limit = int(found.get("Attributes", {}).get(wanted) or SQS_BYTES)
        self._url = url

    def entry(self, body: str) -> dict[str, Any]:
        """A message's body."""
        return {"MessageBody": body}

    def send(self, entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Send a batch."""
        if not self._url:
            self.prepare()
        answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
        return answer.get("Failed", [])  # type: ignore[no-any-return]


class SnsTopic:
    """A topic, by its ARN."""

    name = "sns"

    def __init__(self, client: Any, arn: str) -> None:
        self.said = arn
        self.limit = SNS_BYTES
        self._client = client

    def prepare(self) -> None:
        """See that it is there."""
        try:
            self._client.get_topic_attributes(TopicArn=self.said)
        except ClientError as error:  # who may publish may not always read
            if _code(error) not in {"AuthorizationError", "AccessDenied"}:
                raise

    def entry(self, body: str) -> dict[str, Any]:
        """A message."""
        return {"Message": body}

    def send(self, entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Publish a batch."""
        answer = self._client.publish_batch(TopicArn=self.said, PublishBatchRequestEntries=entries)
        return answer.get("Failed", [])  # type: ignore[no-any-return]


def open_sink(parts: SplitResult, environ: Mapping[str, str], beside: str) -> AwsSink:
    """The sink of `sqs://REGION/[ACCOUNT/]QUEUE` or `sns://REGION/ACCOUNT/TOPIC`.

    With ``beside`` the queue's or topic's name ends with it.
    """
    form = _SQS_FORM if parts.scheme == "sqs" else _SNS_FORM
    options = options_of(parts, ("endpoint",), parts.scheme.upper())
    owner, _, name = unquote(parts.path).strip("/").rpartition("/")
    if beside:
        stem, dot, fifo = name.partition(".")
        name = f"{stem}-{beside}{dot}{fifo}"
    if not parts.netloc or not _NAME.fullmatch(name) or (owner and not _OWNER.fullmatch(owner)):
        raise ConfigurationError(f"the {parts.scheme} address names no queue or topic", hint=form)
    if parts.scheme == "sns" and not owner:
        raise ConfigurationError("the sns address names no account", hint=form)
    client = _client(parts.scheme, parts.netloc, options.get("endpoint"))
    if parts.scheme == "sqs":
        return AwsSink(SqsQueue(client, name, owner), is_fifo=name.endswith(".fifo"))
    arn = f"arn:{_partition_of(parts.netloc)}:sns:{parts.netloc}:{owner}:{name}"
    return AwsSink(SnsTopic(client, arn), is_fifo=name.endswith(".fifo"))


def _client(service: str, region: str, endpoint: str | None) -> Any:
    config = Config(
        connect_timeout=_SECONDS / 4,
        read_timeout=_SECONDS,
        # The relay tries again itself, and it counts.
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=50,
        user_agent_extra="penstock",
    )
    try:
        return boto3.session.Session().client(
            service, region_name=region, endpoint_url=endpoint, config=config
        )
    except (BotoCoreError, ValueError) as error:
        raise ConfigurationError(
            f"boto3 does not take the {service} address or its own settings: {error}",
            hint=_SQS_FORM if service == "sqs" else _SNS_FORM,
        ) from error


def _partition_of(region: str) -> str:
    for prefix, partition in (("cn-", "aws-cn"), ("us-gov-", "aws-us-gov")):
        if region.startswith(prefix):
            return partition
    return "aws"


class AwsSink:
    """Sends the events of all topics of a relay to one queue or topic."""

    #: Also the relay of a queue can send to it.
    any_order = True

    max_block_events = 1_000
    max_block_bytes = 8 << 20

    def __init__(self, place: AwsPlace, *, is_fifo: bool) -> None:
        self.name = place.name
        self.place = place
        self.is_fifo = is_fifo
        self.sent = SentEvents()

    def preflight(self, topic: str, partitions: int) -> None:
        """See that the queue or topic is there, and how large an event may be."""
        with _Translated(self.place.said):
            self.place.prepare()

    def open(self, lease: SinkLease) -> AwsChannel:
        """A channel.  All share the connections of one client."""
        return AwsChannel(self)

    def close(self) -> None:
        """boto3 keeps the connections, and closes them with its client."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """An event as it is sent, and its size as AWS counts it."""

    event: Event
    fields: dict[str, Any]
    size: int


class AwsChannel:
    """The events of one partition, a few calls at a time."""

    def __init__(self, sink: AwsSink) -> None:
        self._sink = sink
        self._closed = threading.Event()
        self._workers = ThreadPoolExecutor(_CALLS_AT_A_TIME, f"penstock-{sink.name}")

    def seen(self) -> Seen | None:
        """Neither queues nor topics tell what came last."""
        return None

    def send_block(self, block: RelayBlock) -> None:
        """Send every event of the block that this process has not sent yet."""
        confirmed = self._sink.sent.of(block)
        is_fifo = self._sink.is_fifo

        def lane_of(event: Event) -> Hashable:
            return group_of(event) if is_fifo else event.sequence

        def call(events: Sequence[Event]) -> None:
            pieces: list[list[_Entry]] = [[]]
            for event, body in zip(events, encoded(events, _body), strict=True):
                entry = self._entry(event, body)
                if pieces[-1] and sum(each.size for each in pieces[-1]) + entry.size > _call_bytes(
                    self._sink.place
                ):
                    pieces.append([])
                pieces[-1].append(entry)
            for piece in pieces:
                self._send(piece, confirmed)

        lanes = Lanes(
            left(block, confirmed),
            lane_of,
            workers=_CALLS_AT_A_TIME,
            chunk=_ENTRIES,
            most_of_a_lane=1,
        )
        lanes.run(call, self._workers)

    def close(self) -> None:
        """Nothing is sent any more.  A call that is under way ends by its own time limit."""
        self._closed.set()
        self._workers.shutdown(cancel_futures=True)

    def abort(self) -> None:
        """No call is begun any more.  boto3 cannot end one that waits for its answer."""
        self._closed.set()

    def _entry(self, event: Event, body: str) -> _Entry:
        place = self._sink.place
        attributes = {
            "content-type": CONTENT_TYPE,
            "ce_id": str(event.event_id),
            "ce_source": source(event.topic),
            "ce_type": event.type or DEFAULT_TYPE,
        }
        size = len(body.encode()) + sum(
            len(name) + len("String") + len(value.encode()) for name, value in attributes.items()
        )
        if size > place.limit:
            raise EventRefused(event.sequence, f"{size} bytes, {place.said} takes {place.limit}")
        fields = place.entry(body)
        fields["Id"] = str(event.sequence)
        fields["MessageAttributes"] = {
            name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
        }
        if self._sink.is_fifo:
            fields["MessageGroupId"] = group_of(event)
            fields["MessageDeduplicationId"] = str(event.event_id)
        return _Entry(event, fields, size)

    def _send(self, entries: Sequence[_Entry], confirmed: set[UUID]) -> None:
        place = self._sink.place
        if self._closed.is_set():
            raise SinkUnavailable(f"the channel to {place.said} was closed")
        try:
            with _Translated(place.said):
                failed = place.send([each.fields for each in entries])
        except _CallRefused as refused:
            if len(entries) == 1:
                raise EventRefused(entries[0].event.sequence, str(refused)) from refused
            for each in entries:  # each alone shows which of them is refused
                self._send([each], confirmed)
            return
        errors = {str(each["Id"]): each for each in failed}
        confirmed.update(each.event.event_id for each in entries if each.fields["Id"] not in errors)
        if errors:
            raise _partly(place.said, errors)


class _CallRefused(Exception):
    """AWS refused a call because of an event in it."""


def _partly(said: str, errors: Mapping[str, Mapping[str, Any]]) -> SinkError:
    """The failure of some events of a call.  First comes the one that no other attempt changes."""
    codes = {number: str(each.get("Code")) for number, each in errors.items()}
    for number in sorted(errors, key=int):
        if errors[number].get("SenderFault") and not _SETUP.search(codes[number]):
            message = errors[number].get("Message", "")
            return EventRefused(int(number), f"{said}: {codes[number]} ({message})")
    text = f"{said} did not take {len(errors)} events: {', '.join(sorted(set(codes.values())))}"
    if any(_SETUP.search(each) for each in codes.values()):
        return SinkMisconfigured(text, hint=_CHECK)
    return SinkUnavailable(text)


def group_of(event: Event) -> str:
    """The message group: the key, or its hash if AWS does not take it; else the partition's."""
    if not event.key:
        return f"partition-{event.partition}"
    if _GROUP.fullmatch(event.key):
        return event.key
    return hashlib.sha256(event.key.encode("utf-8", "surrogatepass")).hexdigest()


def _body(event: Event) -> str:
    """The CloudEvents JSON.  AWS takes no U+FFFE and U+FFFF; in JSON they can be escaped."""
    return to_json(event).decode().replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")


def _call_bytes(place: AwsPlace) -> int:
    return SQS_BYTES if place.name == "sqs" else SNS_BYTES


class _Translated:
    """boto3's errors as those of a sink.  What they say holds no secret: AWS gets signatures."""

    def __init__(self, said: str) -> None:
        self._said = said

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ClientError):
            text = f"{self._said}: {_code(error)} ({_message(error)})"
            if _SETUP.search(_code(error)):
                raise SinkMisconfigured(text, hint=_CHECK) from error
            if _EVENT.search(_code(error)):
                raise _CallRefused(text) from error
            raise SinkUnavailable(text) from error
        if isinstance(error, NoCredentialsError | PartialCredentialsError | ProfileNotFound):
            raise SinkMisconfigured(
                f"{self._said}: boto3 finds no login ({error})",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role",
            ) from error
        if isinstance(error, BotoCoreError):
            raise SinkUnavailable(f"{self._said} did not answer: {error}") from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def _message(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message", ""))[:200]
