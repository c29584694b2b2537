"""Redis Streams, exactly once: one stream for each partition, appended by compare-and-set.

The id of an entry is HISTORY-SEQUENCE. Explicit ids alone are not enough: Redis refuses an id that
is not larger than the last one, so that after a foreign writer, or after memory has run out in the
middle of a pipeline, events are lost and nobody is told. Here a script appends only when the last
id of the stream is the one that the relay expects. Whoever is late, or finds something else than it
left, writes nothing.

The last id (`last-generated-id`) is the position of the relay in the stream. It stays when entries
are trimmed or deleted, and the script moves it over events that were given up. What a script has
written when it fails stays, and the next attempt goes on after it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ops.sinks.base import (
    EventRefused,
    RelayBlock,
    SinkLease,
    SinkMisconfigured,
    SinkUnavailable,
    encoded,
)
from ops.sinks.cloudevents import to_properties
from ops.sinks.ends import NOTHING, SinkEnd, left
from ops.sinks.logins import secret, tls
from ops.sinks.options import count, flag, host_and_port, options_of
from penstock.log.restores import Seen

if TYPE_CHECKING:
    from penstock.records import Event

    #: An event, and the fields of its entry.
    _Entry = tuple[Event, list[str | bytes]]

VARIABLES = "PENSTOCK_REDIS"
PREFIX = "penstock"
RELAY_FIELD = "penstock_relay"
TOPIC_FIELD = "penstock_topic"

_CHUNK = 500
#: Lua hands at most about 8,000 values to a command, and Redis takes about a million in a script.
_ENTRY_TEXTS = 7_800
_CHUNK_TEXTS = 100_000
_PORT = 6379
_SECONDS = 15
_NO_ID = "0-0"
_SAID = "Redis"

_LAST_ID = """
local function last_id()
  if redis.call('EXISTS', KEYS[1]) == 0 then return '0-0' end
  local info = redis.call('XINFO', 'STREAM', KEYS[1])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then return info[i + 1] end
  end
end
"""

#: The last id, and the newest entry that is still there.
READ = f"""{_LAST_ID}
local entries = {{}}
local last = last_id()
if last ~= '0-0' then entries = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1) end
return {{last, entries}}
"""

#: The expected last id, the one to end with, MAXLEN or nothing; then for each entry its id, how
#: many texts follow, and these: names and values.
APPEND = f"""{_LAST_ID}
local present = last_id()
if present ~= ARGV[1] then return {{0, present}} end
local command = {{'XADD', KEYS[1]}}
if ARGV[3] ~= '' then command = {{'XADD', KEYS[1], 'MAXLEN', '~', ARGV[3]}} end
local at = 4
while at <= #ARGV do
  local entry = {{unpack(command)}}
  local texts = tonumber(ARGV[at + 1])
  table.insert(entry, ARGV[at])
  for i = at + 2, at + 1 + texts do table.insert(entry, ARGV[i]) end
  redis.call(unpack(entry))
  present = ARGV[at]
  at = at + 2 + texts
end
if present ~= ARGV[2] then
  if present == '0-0' then
    redis.call('XADD', KEYS[1], ARGV[2], '{RELAY_FIELD}', '')
    redis.call('XDEL', KEYS[1], ARGV[2])
  end
  redis.call('XSETID', KEYS[1], ARGV[2])
end
return {{1, ARGV[2]}}
"""


class RedisSink:
    """Sends each partition of a topic to the stream PREFIX:TOPIC:PARTITION."""

    name = "redis"
    max_block_events = 5_000
    max_block_bytes = 4 << 20

    def __init__(
        self,
        connect: Callable[[], redis.Redis],
        *,
        prefix: str = PREFIX,
        maxlen: int | None = None,
        resend: bool = False,
        volatile: bool = False,
    ) -> None:
        self.resend = resend
        self.maxlen = maxlen
        self._connect = connect
        self._client = connect()
        self._prefix = prefix
        self._volatile = volatile
        self.read = self._client.register_script(READ)
        self.append = self._client.register_script(APPEND)

    def stream(self, topic: str, partition: int) -> str:
        """The name of the stream of a partition."""
        return f"{self._prefix}:{topic}:{partition}"

    def preflight(self, topic: str, partitions: int) -> None:
        """Check that Redis keeps what it has confirmed, and that the streams are none of others."""
        with _translated():
            memory, disk = self._client.info("memory"), self._client.info("persistence")
            kinds = [self._client.type(self.stream(topic, each)) for each in range(partitions)]
        policy = str(memory.get("maxmemory_policy", ""))
        if policy.startswith("allkeys"):
            raise SinkMisconfigured(
                f"Redis removes streams when its memory runs out (maxmemory-policy {policy})",
                hint="set maxmemory-policy noeviction; the relay waits while there is no memory",
            )
        if not (self._volatile or int(disk.get("aof_enabled", 0))):
            raise SinkMisconfigured(
                "Redis writes no log to its disk, so it forgets events when it ends",
                hint="set appendonly yes; or add volatile=true to the sink's address if you accept "
                "it, and resend=true if the relay is to send again what was lost",
            )
        if wrong := [number for number, kind in enumerate(kinds) if kind not in _STREAMS]:
            raise SinkMisconfigured(
                f"the key {self.stream(topic, wrong[0])} is there and is no stream",
                hint="name another prefix in the sink's address",
            )

    def open(self, lease: SinkLease) -> RedisChannel:
        """The stream of a partition, for one lease."""
        return RedisChannel(self, lease, self._connect())

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class RedisChannel:
    """One stream, as long as one lease lasts. It knows the last id from the last answer."""

    def __init__(self, sink: RedisSink, lease: SinkLease, client: redis.Redis) -> None:
        self._sink = sink
        self._lease = lease
        self._client = client
        self._ended = False
        self._ends: dict[str, SinkEnd] = {}

    def seen(self) -> Seen | None:
        """The last event that the stream has had."""
        end = self._end(self._lease.topic)
        return None if end is NOTHING else Seen(end.sequence, end.history)

    def send_block(self, block: RelayBlock) -> None:
        """Append what the stream does not have yet, in scripts of at most 500 entries."""
        end = self._end(block.topic)
        stream = self._sink.stream(block.topic, block.partition)
        place, resend = f"the stream {stream}", self._sink.resend
        events = left(block, end, place, resend=resend, skip=self._skip)
        last = SinkEnd(block.history, block.last_sequence)
        if (end.history, end.sequence) == (last.history, last.sequence):
            return
        entries = [
            (event, fields)
            for event, fields in zip(events, encoded(events, _fields_of(block)), strict=True)
        ]
        for chunk, is_last in _chunks(entries):
            texts: list[str | bytes] = []
            for event, fields in chunk:
                texts += [_id(_end_of(block, event)), str(len(fields)), *fields]
            self._move(block.topic, last if is_last else _end_of(block, chunk[-1][0]), texts)

    def close(self) -> None:
        """Close its connection."""
        self._ends.clear()
        self._client.close()

    def abort(self) -> None:
        """End a call that waits for its answer; connecting has a time limit of its own."""
        self._ended = True
        for each in list(self._client.connection_pool._in_use_connections):
            # Who reads or writes is woken, and closes the socket itself.
            with suppress(OSError, TypeError):  # closed, or not connected yet
                socket.socket.shutdown(each._sock, socket.SHUT_RDWR)

    def _skip(self, topic: str, end: SinkEnd) -> None:
        self._move(topic, end, [])

    def _end(self, topic: str) -> SinkEnd:
        if topic not in self._ends:
            stream = self._sink.stream(topic, self._lease.partition)
            with _translated():
                last, entries = self._sink.read(keys=[stream], client=self._wanted())
            self._ends[topic] = _found(stream, last.decode(), entries, self._lease)
        return self._ends[topic]

    def _move(self, topic: str, end: SinkEnd, texts: Sequence[str | bytes]) -> None:
        """Append, and end with this id, if the last one is the expected one."""
        stream = self._sink.stream(topic, self._lease.partition)
        expected = _id(self._end(topic))
        maxlen = self._sink.maxlen or ""
        with _translated():
            moved, present = self._sink.append(
                keys=[stream],
                args=[expected, _id(end), maxlen, *texts],
                client=self._wanted(),
            )
        if not moved:
            raise SinkUnavailable(
                f"the stream {stream} ends at {present.decode()}, not at {expected}: another relay "
                "has gone on, or the stream was changed"
            )
        self._ends[topic] = end

    def _wanted(self) -> redis.Redis:
        if self._ended:
            raise SinkUnavailable("the relay has ended the call to Redis")
        return self._client


def open_sink(parts: SplitResult, *, environ: Mapping[str, str], beside: str) -> RedisSink:
    """The sink of an address: `redis://HOST:PORT/PREFIX`, and `rediss:` with TLS."""
    options = options_of(parts, ("db", "maxlen", "resend", "volatile"), _SAID)
    prefix = parts.path.strip("/") or PREFIX
    settings: dict[str, Any] = {
        "prefix": f"{prefix}.{beside}" if beside else prefix,
        "maxlen": count(options, "maxlen", _SAID, lowest=1),
        "resend": flag(options, "resend", _SAID, default=False),
        "volatile": flag(options, "volatile", _SAID, default=False),
    }
    connect = partial(
        redis.Redis,
        **host_and_port(parts, _SAID, _PORT),
        db=count(options, "db", _SAID, lowest=0) or 0,
        username=secret(environ, f"{VARIABLES}_USERNAME") or None,
        password=secret(environ, f"{VARIABLES}_PASSWORD") or None,
        socket_timeout=_SECONDS,
        socket_connect_timeout=_SECONDS,
        # A script that is repeated after its answer was lost finds its own ids, and looks late.
        retry=Retry(NoBackoff(), 0),
        **(_tls(environ) if parts.scheme == "rediss" else {}),
    )
    return RedisSink(connect, **settings)


def _tls(environ: Mapping[str, str]) -> dict[str, Any]:
    tls(environ, VARIABLES)  # says what is wrong with the files; Redis's client reads them anew
    files = {"ca_certs": "CA", "certfile": "CERTIFICATE", "keyfile": "KEY"}
    return {
        "ssl": True,
        **{f"ssl_{name}": environ.get(f"{VARIABLES}_{file}_FILE") for name, file in files.items()},
    }


_STREAMS = {b"stream", b"none"}


def _id(end: SinkEnd) -> str:
    return f"{end.history}-{end.sequence}"


def _end_of(block: RelayBlock, event: Event) -> SinkEnd:
    return SinkEnd(block.history, event.sequence, str(event.event_id))


def _fields_of(block: RelayBlock) -> Any:
    def fields(event: Event) -> list[str | bytes]:
        found: list[str | bytes] = [RELAY_FIELD, block.relay, TOPIC_FIELD, block.known_as]
        for name, value in to_properties(event).items():
            found += [name, value.encode()]  # a text that cannot be written is refused here
        found += ["data", event.payload]
        if len(found) > _ENTRY_TEXTS:
            raise EventRefused(
                event.sequence,
                f"it has {len(found) // 2} fields with its headers, an entry takes "
                f"{_ENTRY_TEXTS // 2}",
            )
        return found

    return fields


def _chunks(entries: Sequence[_Entry]) -> Iterator[tuple[Sequence[_Entry], bool]]:
    """The entries of each script, and whether it is the last one.  At least one, if it is empty."""
    chunk: list[_Entry] = []
    texts = 0
    for event, fields in entries:
        if chunk and (len(chunk) == _CHUNK or texts + len(fields) > _CHUNK_TEXTS):
            yield chunk, False
            chunk, texts = [], 0
        chunk.append((event, fields))
        texts += len(fields)
    yield chunk, True


def _found(stream: str, last: str, entries: Sequence[Any], lease: SinkLease) -> SinkEnd:
    """The end of a stream, if this relay has written it."""
    if last == _NO_ID:
        return NOTHING
    history, sequence = (int(each) for each in last.split("-"))
    if not entries:
        return SinkEnd(history, sequence)
    newest, texts = entries[0]
    fields = dict(zip(texts[::2], texts[1::2], strict=True))
    owner = fields.get(RELAY_FIELD.encode()), fields.get(TOPIC_FIELD.encode())
    if owner != (lease.relay.encode(), lease.known_as.encode()):
        raise SinkMisconfigured(
            f"the stream {stream} has entries of another program, relay or topic",
            hint=f"delete the entries that {lease.relay!r} has not written (XDEL), or name another "
            "prefix in the sink's address; nothing else may write to a relay's streams",
        )
    is_last = newest.decode() == last
    return SinkEnd(history, sequence, fields[b"ce_id"].decode() if is_last else "")


@contextmanager
def _translated() -> Iterator[None]:
    """Redis's errors as those of sinks. They hold no password."""
    try:
        yield
    except (
        redis.exceptions.AuthenticationError,
        redis.exceptions.AuthorizationError,
        redis.exceptions.NoPermissionError,
    ) as error:
        raise SinkMisconfigured(
            f"Redis refuses the relay's login ({error})",
            hint=f"set {VARIABLES}_USERNAME and {VARIABLES}_PASSWORD; the login needs +@stream, "
            "+@scripting, +info, +type and +exists on the keys of the prefix",
        ) from error
    except redis.exceptions.RedisError as error:
        text = str(error)
        if "WRONGTYPE" in text or text.startswith(("unknown command", "ERR unknown command")):
            raise SinkMisconfigured(
                f"Redis cannot do what the relay needs ({text})",
                hint="name another prefix in the sink's address, and use Redis 6.2 or newer",
            ) from error
        raise SinkUnavailable(f"Redis: {type(error).__name__} ({text})") from error
