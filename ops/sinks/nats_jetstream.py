"""NATS JetStream, exactly once: up to 1,000 events are one atomic batch with an expectation.

The first message of a batch says which message of the partition's subjects has to be the last one.
The server stores the batch whole, or refuses it whole: when another relay has gone on, when a part
is missing, when its end does not come. When the answer is lost, the partition's last message tells
whether the batch is there. It is asked for at the start of each lease and after each error.

No `Nats-Msg-Id` is set. It would tell repetitions for the length of a window only, and in that
window it would refuse what is sent again on purpose.
"""

from __future__ import annotations

import base64
import logging
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import SplitResult, quote, unquote

from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    SinkLease,
    SinkMisconfigured,
    SinkUnavailable,
    encoded,
)
from ops.sinks.cloudevents import CONTENT_TYPE, DEFAULT_TYPE, attributes, header_value
from ops.sinks.ends import NOTHING, SinkEnd, left
from ops.sinks.logins import secret, tls
from ops.sinks.nats_connection import VARIABLES, NatsCalls, NatsConnection, NatsMessage
from ops.sinks.options import count, flag, options_of
from penstock.errors import ConfigurationError
from penstock.log.restores import Seen
from penstock.records import Event

log = logging.getLogger(__name__)

BATCH_EVENTS = 1_000
RELAY_HEADER = "penstock-relay"
TOPIC_HEADER = "penstock-topic"

_SAID = "NATS"
_OLDEST = (2, 12)
_PORT = 4222
#: What headers of a batch and the protocol need besides the event.
_ROOM = 512
#: A line of the protocol has at most 4,096 bytes: the subject, that of the answer, two sizes.
_SUBJECT_BYTES = 3_900
#: How far the clocks of the database and of NATS may differ.
_CLOCKS = timedelta(minutes=1)
_NO_STREAM = 10059
_NO_MESSAGE = 10037
_WRONG_SEQUENCE = 10071
_LIMITS = ("max_msgs", "max_bytes", "max_age", "max_msgs_per_subject")
#: Signs that have a meaning in subjects, and those that cannot be in one.
_SIGNS = re.compile(r"[\s*>%\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class _Last:
    """The end of a partition's subjects, and the number of that message in the stream."""

    end: SinkEnd
    number: int


class NatsSink:
    """Sends each partition of a topic to the subjects PREFIX.TOPIC.PARTITION.> of one stream."""

    name = "nats"
    max_block_events = BATCH_EVENTS
    max_block_bytes = 4 << 20

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        *,
        prefix: str,
        create: bool = False,
        replicas: int = 1,
        resend: bool = False,
        volatile: bool = False,
        is_beside: bool = False,
    ) -> None:
        self.connection = connection
        self.is_beside = is_beside
        self.stream = stream
        self.resend = resend
        self._prefix = prefix
        self._create = create
        self._replicas = replicas
        self._volatile = volatile

    def subjects(self, topic: str, partition: int) -> str:
        """The subjects of a partition: its types come after it."""
        return f"{self._prefix}.{_token(topic)}.{partition}"

    def preflight(self, topic: str, partitions: int) -> None:
        """Check that the stream takes atomic batches, has the subjects, and keeps what it has."""
        version, text, _ = self.connection.server()
        if version < _OLDEST:
            raise SinkMisconfigured(
                f"the NATS server is {text}, which has no atomic batches",
                hint=f"use nats-server {_OLDEST[0]}.{_OLDEST[1]} or newer",
            )
        config = self.configuration()
        if config is None and self._create:
            self._make()
            config = self.configuration()
        if config is None:
            raise SinkMisconfigured(
                f"NATS has no stream {self.stream}",
                hint="add create=true to the sink's address, or run: nats stream add "
                f"{self.stream} --subjects '{self._prefix}.>' --allow-batch --defaults",
            )
        if len(self.subjects(topic, partitions).encode()) > _SUBJECT_BYTES:
            raise SinkMisconfigured(
                f"the NATS subjects of the topic {topic[:60]}... are longer than the server takes",
                hint=f"rename the topic: it may have {_SUBJECT_BYTES} bytes with the prefix",
            )
        if problem := self._problem(config, f"{self.subjects(topic, 0)}.x"):
            text, hint = problem
            raise SinkMisconfigured(f"the NATS stream {self.stream} {text}", hint=hint)
        if config.get("discard") == "old" and _removes(config):
            log.info("the NATS stream %s removes its oldest messages by its limits", self.stream)

    def open(self, lease: SinkLease) -> NatsChannel:
        """The subjects of a partition, for one lease."""
        return NatsChannel(self, lease)

    def close(self) -> None:
        """Close the connection and end its thread."""
        self.connection.close()

    def configuration(self) -> dict[str, Any] | None:
        """The configuration of the stream.  None when there is no such stream."""
        answer = self.connection.api(f"STREAM.INFO.{self.stream}")
        return None if _code(answer) == _NO_STREAM else _checked(answer)["config"]

    def removed_before(self, calls: NatsCalls) -> datetime | None:
        """What was stored before this time may be gone by the stream's limits; None: nothing."""
        found = _checked(self.connection.api(f"STREAM.INFO.{self.stream}", calls=calls))
        state = found["state"]
        if not _removes(found["config"]) or state["messages"] == state["last_seq"]:
            return None
        oldest = datetime.fromisoformat(state["first_ts"][:19]).replace(tzinfo=UTC)
        return oldest + _CLOCKS if state["messages"] else datetime.max.replace(tzinfo=UTC)

    def last(self, subjects: str, calls: NatsCalls) -> dict[str, Any] | None:
        """The last message of a partition, asked of the stream's leader."""
        request = {"last_by_subj": f"{subjects}.>"}
        answer = self.connection.api(f"STREAM.MSG.GET.{self.stream}", request, calls)
        if _code(answer) == _NO_MESSAGE:
            return None
        found: dict[str, Any] = _checked(answer)["message"]
        return found

    def _make(self) -> None:
        wanted = {
            "name": self.stream,
            "subjects": [f"{self._prefix}.>"],
            "storage": "file",
            "retention": "limits",
            "num_replicas": self._replicas,
            "allow_atomic": True,
        }
        _checked(self.connection.api(f"STREAM.CREATE.{self.stream}", wanted))

    def _problem(self, config: Mapping[str, Any], subject: str) -> tuple[str, str] | None:
        """What is wrong with a stream, and what to set."""
        edit = f"run: nats stream edit {self.stream}"
        if not any(_covers(each, subject) for each in config.get("subjects") or ()):
            return f"has no subjects {self._prefix}.>", f"{edit} --subjects '{self._prefix}.>'"
        if not config.get("allow_atomic"):
            return "takes no atomic batches", f"{edit} --allow-batch"
        if config.get("retention", "limits") != "limits":
            return (
                f"removes what was read (retention {config['retention']}), and then forgets it",
                "name a stream with retention limits, and let a work queue take its messages",
            )
        if config.get("storage") == "memory" and not self._volatile:
            return (
                "keeps its messages in memory, and forgets them when the server ends",
                "name a stream on disk; or add volatile=true to the sink's address",
            )
        return None


class NatsChannel:
    """The subjects of one partition, as long as one lease lasts."""

    def __init__(self, sink: NatsSink, lease: SinkLease) -> None:
        self._sink = sink
        self._lease = lease
        self._lasts: dict[str, _Last | None] = {}
        self._calls = NatsCalls()
        self._most = 0
        self._removed_before: datetime | None = None

    def seen(self) -> Seen | None:
        """The last event that the stream has."""
        last = self._last(self._lease.topic)
        if last is None or last.end is NOTHING:
            return None
        return Seen(last.end.sequence, last.end.history)

    def send_block(self, block: RelayBlock) -> None:
        """Send what the stream does not have yet, in atomic batches."""
        subjects = self._sink.subjects(block.topic, block.partition)
        last = self._last(block.topic) or self._emptied(block, subjects)
        place = f"the NATS stream {self._sink.stream} ({subjects}.>)"
        events = left(block, last.end, place, resend=self._sink.resend, skip=self._skip)
        messages = list(encoded(events, lambda event: _message(block, event, subjects)))
        self._refuse_large(events, messages)
        for start in range(0, len(events), BATCH_EVENTS):
            stop = start + BATCH_EVENTS
            last = self._batch(subjects, messages[start:stop], last, events[start:stop][-1], block)
            self._lasts[block.topic] = last
        # What comes after was given up, so it is passed.
        end = SinkEnd(block.history, block.last_sequence)
        if (last.end.history, last.end.sequence) != (end.history, end.sequence):
            self._lasts[block.topic] = _Last(end, last.number)

    def close(self) -> None:
        """Nothing is open between two calls."""
        self._lasts.clear()

    def abort(self) -> None:
        """End the call that is under way.  The server forgets a batch whose end does not come."""
        self._calls.end()

    def _skip(self, topic: str, end: SinkEnd) -> None:
        last = self._last(topic)
        self._lasts[topic] = _Last(end, 0 if last is None else last.number)

    def _last(self, topic: str) -> _Last | None:
        """The end of the partition.  None when the stream may have removed it by its limits."""
        if topic in self._lasts:
            return self._lasts[topic]
        found = self._sink.last(self._sink.subjects(topic, self._lease.partition), self._calls)
        last: _Last | None
        if found is not None:
            last = _Last(_end_of(found, self._lease), int(found["seq"]))
        else:
            self._removed_before = self._sink.removed_before(self._calls)
            last = _Last(NOTHING, 0) if self._removed_before is None else None
        self._lasts[topic] = last
        return last

    def _emptied(self, block: RelayBlock, subjects: str) -> _Last:
        """Where to go on in a partition whose messages the stream may have removed.

        A block that was sent would still be there if the stream has messages that are older.
        """
        told = self._removed_before
        may_be_sent = told is not None and any(each.sequenced_at <= told for each in block.events)
        if block.reopened and may_be_sent and not self._sink.is_beside:
            raise SinkMisconfigured(
                f"the NATS stream {self._sink.stream} has nothing of {subjects}.> any more: it "
                f"cannot tell whether {block.first_sequence} to {block.last_sequence} were sent",
                hint="move the subscription by `penstock subscription seek`: behind them if they "
                "were sent, to their first if not",
            )
        return _Last(SinkEnd(block.history, block.first_sequence - 1), 0)

    def _refuse_large(self, events: Sequence[Event], messages: Sequence[NatsMessage]) -> None:
        if not self._most:
            self._most = self._sink.connection.server(self._calls)[2] - _ROOM
        for event, (subject, headers, payload) in zip(events, messages, strict=True):
            length = len(subject.encode())
            if length > _SUBJECT_BYTES:
                raise EventRefused(
                    event.sequence,
                    f"its subject has {length} bytes with its type, the server takes "
                    f"{_SUBJECT_BYTES}",
                )
            size = len(payload) + sum(len(name) + len(text) + 4 for name, text in headers.items())
            if size > self._most:
                raise EventRefused(
                    event.sequence,
                    f"{size} bytes with its headers, the server takes {self._most}",
                )

    def _batch(
        self,
        subjects: str,
        messages: Sequence[NatsMessage],
        last: _Last,
        newest: Event,
        block: RelayBlock,
    ) -> _Last:
        """One atomic batch: all of it or nothing."""
        batch = uuid.uuid4().hex
        for number, (_, headers, _) in enumerate(messages, start=1):
            headers["Nats-Batch-Id"] = batch
            headers["Nats-Batch-Sequence"] = str(number)
        first, end = messages[0][1], messages[-1][1]
        first["Nats-Expected-Last-Subject-Sequence"] = str(last.number)
        first["Nats-Expected-Last-Subject-Sequence-Subject"] = f"{subjects}.>"
        end["Nats-Batch-Commit"] = "1"
        answer = self._sink.connection.send(messages, self._calls)
        if _code(answer) == _WRONG_SEQUENCE:
            raise SinkUnavailable(
                f"the NATS subjects {subjects}.> do not end at message {last.number}: another "
                "relay has gone on, or somebody else has written to them"
            )
        stored = _checked(answer)
        if int(stored.get("count", 0)) != len(messages):
            raise SinkUnavailable(f"NATS has stored {stored.get('count')} of {len(messages)}")
        return _Last(
            SinkEnd(block.history, newest.sequence, str(newest.event_id)), int(stored["seq"])
        )


def open_sink(parts: SplitResult, *, environ: Mapping[str, str], beside: str) -> NatsSink:
    """The sink of an address: `nats://HOST:PORT[,HOST:PORT]/STREAM`; `nats+tls:` with TLS."""
    options = options_of(parts, ("prefix", "create", "replicas", "resend", "volatile"), _SAID)
    stream = parts.path.strip("/")
    if not parts.netloc or not re.fullmatch(r"[^\s.*>/\\]+", stream):
        raise ConfigurationError("the NATS address names no server, or no stream after it")
    prefix = options.get("prefix") or stream
    if _SIGNS.search(prefix) or "" in prefix.split("."):
        raise ConfigurationError("the NATS address has a prefix= that cannot begin a subject")
    return NatsSink(
        NatsConnection(_servers(parts), _login(parts, environ)),
        stream,
        prefix=f"{prefix}.{_token(beside)}" if beside else prefix,
        create=flag(options, "create", _SAID, default=False),
        replicas=count(options, "replicas", _SAID, lowest=1) or 1,
        resend=flag(options, "resend", _SAID, default=False),
        volatile=flag(options, "volatile", _SAID, default=False),
        is_beside=bool(beside),
    )


def _servers(parts: SplitResult) -> list[str]:
    hosts = [each.strip() for each in parts.netloc.split(",")]
    scheme = "tls" if parts.scheme.endswith("tls") else "nats"
    return [
        f"{scheme}://{each}" if re.search(r":\d+$", each) else f"{scheme}://{each}:{_PORT}"
        for each in hosts
    ]


def _login(parts: SplitResult, environ: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "user": secret(environ, f"{VARIABLES}_USERNAME"),
        "password": secret(environ, f"{VARIABLES}_PASSWORD"),
        "token": secret(environ, f"{VARIABLES}_TOKEN"),
        "user_credentials": environ.get(f"{VARIABLES}_CREDENTIALS_FILE"),
    }
    if parts.scheme.endswith("tls"):
        found["tls"] = tls(environ, VARIABLES)
    return {name: value for name, value in found.items() if value}


def _message(block: RelayBlock, event: Event, subjects: str) -> NatsMessage:
    headers = {f"ce-{name}": header_value(str(value)) for name, value in attributes(event).items()}
    if event.content_type == CONTENT_TYPE:  # the attributes are in the payload too
        headers["content-type"] = CONTENT_TYPE
    headers[RELAY_HEADER] = header_value(block.relay)
    headers[TOPIC_HEADER] = header_value(block.known_as)
    return f"{subjects}.{_type(event.type or DEFAULT_TYPE)}", headers, event.payload


def _end_of(message: Mapping[str, Any], lease: SinkLease) -> SinkEnd:
    """Up to where the stream has the partition, if this relay has written it."""
    headers = _headers(message)
    owner = headers.get(RELAY_HEADER), headers.get(TOPIC_HEADER)
    if owner != (lease.relay, lease.known_as):
        raise SinkMisconfigured(
            f"the NATS subject {message['subject']} has messages of another program, relay or "
            "topic",
            hint=f"delete the messages that {lease.relay!r} has not sent, or name another prefix= "
            "in the sink's address; nothing else may write to a relay's subjects",
        )
    return SinkEnd(
        int(headers["ce-penstockhistory"]), int(headers["ce-sequence"]), headers["ce-id"]
    )


def _headers(message: Mapping[str, Any]) -> dict[str, str]:
    lines = base64.b64decode(message.get("hdrs") or "").decode().split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name: unquote(text.strip()) for name, _, text in pairs}


def _token(name: str) -> str:
    """A name as one token of a subject."""
    return _SIGNS.sub(_quoted, name).replace(".", "%2E")


def _type(name: str) -> str:
    """A type as the end of a subject: its dots separate tokens, if none of these is empty."""
    return _token(name) if "" in name.split(".") else _SIGNS.sub(_quoted, name)


def _quoted(sign: re.Match[str]) -> str:
    return quote(sign[0], safe="")


def _covers(pattern: str, subject: str) -> bool:
    """Whether a subject of a stream's configuration stands for this one."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">" and len(given) >= len(wanted):
        wanted, given = wanted[:-1], given[: len(wanted) - 1]
    return len(wanted) == len(given) and all(
        each in {"*", other} for each, other in zip(wanted, given, strict=True)
    )


def _removes(config: Mapping[str, Any]) -> bool:
    """Whether a stream removes messages by its limits."""
    return any(int(config.get(name) or 0) > 0 for name in _LIMITS)


def _code(answer: Mapping[str, Any]) -> int:
    return int((answer.get("error") or {}).get("err_code", 0))


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, unless it is an error."""
    error = answer.get("error")
    if error is not None:
        raise SinkUnavailable(
            f"NATS answers {error.get('description')} ({error.get('err_code', error.get('code'))})"
        )
    return answer
