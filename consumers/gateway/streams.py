"""The call that listens to a topic, as server-sent events."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from functools import partial

from consumers.gateway.answers import GatewayAnswer, Refused, as_refused
from consumers.gateway.calls import Gone, HttpCall, number, send_parts
from consumers.gateway.operations import Operation, Parameter
from consumers.gateway.room import PART_BYTES, size_of
from consumers.gateway.tails import MOST_TAKEN_BYTES, KeptEvent, Seat, read_on
from penstock.records import PartitionRange
from penstock.topics import names

#: A comment goes so often, so that a caller without network is noticed.
COMMENT_SECONDS = 15.0
#: The right to read is asked for again so often.
RIGHT_SECONDS = 10.0
_PLACE = re.compile(r"(\d{1,9})\.(\d{1,5}\.\d{1,18}(?:-\d{1,5}\.\d{1,18}){0,1023})", re.ASCII)


class StreamListener:
    """One caller that listens."""

    def __init__(self, call: HttpCall, seat: Seat, partition: int | None) -> None:
        self._call = call
        self._seat = seat
        self._tail = seat.tail
        self._partition = partition
        self._topic = call.address("topic")
        #: The last sequence that was sent, or was there at the start, of each partition.
        self.positions: dict[int, int] = {}
        self.history = 1
        self._sent = self._asked = time.monotonic()

    async def ranges(self) -> list[PartitionRange]:
        """The partitions that it listens to, as the account may see them now."""
        self._asked = time.monotonic()
        found = await self._call.run(partial(names.partition_ranges, topic=self._topic))
        return [each for each in found if self._partition in {None, each.partition}]

    async def listen(self) -> None:
        """Send until the caller hangs up, or may listen no longer."""
        number_ = self._tail.ring.next_number
        # So a caller that is cut off before the first event goes on here too.
        await self._send(f"id: {self._place()}\n\n".encode())
        await self._fetch_missing()
        while True:
            events = self._tail.ring.since(number_)
            number_ = self._tail.ring.next_number if events is None else number_ + len(events)
            if events is None or not await self._send_kept(events):
                await self._fetch_missing()
                continue
            if self._seat.is_lost or time.monotonic() - self._asked >= RIGHT_SECONDS:
                await self.ranges()
                if self._seat.is_lost:
                    raise Refused(409, "the topic was changed: begin anew")
            if time.monotonic() - self._sent >= COMMENT_SECONDS:
                await self._send(b": \n\n")
            if self._tail.ring.next_number == number_:
                await self._tail.changed(1.0)

    async def _send_next(self, events: list[KeptEvent]) -> bool:
        """Send those that come next; False when one is missing between."""
        is_whole = True

        def frames() -> Iterator[bytes]:
            nonlocal is_whole
            for event in events:
                if self._partition not in {None, event.partition}:
                    continue
                position = self.positions.get(event.partition, 0)
                if event.sequence > position + 1:
                    is_whole = False
                    return
                if event.sequence == position + 1:
                    self.positions[event.partition] = event.sequence
                    yield self._frame(event)

        for data in together(frames()):
            await self._send(data)
        return is_whole

    async def _send_kept(self, events: list[KeptEvent]) -> bool:
        """The same with what the ring had.  It counts if it is long: the ring may drop it."""
        size = sum(len(event.data) for event in events)
        if size <= MOST_TAKEN_BYTES:
            return await self._send_next(events)
        share = self._call.share
        await share.take(size)
        try:
            return await self._send_next(events)
        finally:
            share.keep(0)

    async def _fetch_missing(self) -> None:
        """Fetch what is missing, until the position of each partition is the newest."""
        while True:
            ranges = await self.ranges()
            known = dict(self.positions)
            missing = sum(
                max(0, each.high_watermark - known.get(each.partition, 0)) for each in ranges
            )
            if not missing:
                return
            share = self._call.share
            room = await share.take(size_of(missing))
            try:
                found = await self._call.run(
                    partial(read_on, topic=self._topic, ranges=ranges, known=known, room=room)
                )
                share.keep(sum(len(event.data) for event in found))
                await self._send_next(found)
            finally:
                share.keep(0)

    def _frame(self, event: KeptEvent) -> bytes:
        self.history = event.history
        return f"id: {self._place()}\ndata: ".encode() + event.data + b"\n\n"

    def _place(self) -> str:
        places = "-".join(f"{p}.{s}" for p, s in sorted(self.positions.items()))
        return f"{self.history}.{places}"

    async def _send(self, data: bytes) -> None:
        await send_parts(self._call.send, data)
        self._sent = time.monotonic()


async def stream(call: HttpCall) -> GatewayAnswer | None:
    """Events of a topic as they come, after those that Last-Event-ID names."""
    given = call.queries()
    partition = int(number(given, "partition", 0, 0, 65_535)) if "partition" in given else None
    with call.services.tails.joined(call.caller.principal, call.address("topic")) as seat:
        listener = StreamListener(call, seat, partition)
        ranges = await listener.ranges()
        if not ranges:
            raise Refused(400, "the topic has no such partition")
        listener.positions = _start(call, given, ranges)
        listener.history = ranges[0].history
        await begin_stream(call)
        await until_gone(call, listener.listen())
        return None


async def begin_stream(call: HttpCall) -> None:
    """Begin an answer of server-sent events."""
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
    await call.send({"type": "http.response.start", "status": 200, "headers": headers})


def together(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Short frames in one part; never many long ones at a time."""
    some: list[bytes] = []
    size = 0
    for frame in frames:
        some.append(frame)
        size += len(frame)
        if size >= PART_BYTES:
            yield b"".join(some)
            some, size = [], 0
    if some:
        yield b"".join(some)


async def until_gone(call: HttpCall, listening: Awaitable[None]) -> None:
    """Listen until the caller hangs up; what ends it otherwise is the last event."""
    try:
        await call.unless_gone(listening)
    except Gone:
        return
    except Exception as error:
        problem = error if isinstance(error, Refused) else as_refused(error)
        if problem is None:
            raise
        await send_parts(call.send, f"event: end\ndata: {problem.status}\n\n".encode())
    await call.send({"type": "http.response.body", "body": b""})


def _start(
    call: HttpCall, given: Mapping[str, str], ranges: list[PartitionRange]
) -> dict[int, int]:
    """After which sequence of each partition it begins."""
    text = call.shown.header("last-event-id") or given.get("after", "")
    if not text:
        if given.get("from", "latest") == "earliest":
            return {each.partition: each.low_sequence - 1 for each in ranges}
        return {each.partition: each.high_watermark for each in ranges}
    place = _PLACE.fullmatch(text)
    if place is None:
        raise Refused(400, "Last-Event-ID has to be as it was sent: history.partition.sequence")
    if int(place[1]) != ranges[0].history:
        raise Refused(409, f"the log has another history now than {place[1]}: begin anew")
    known = {
        int(partition): int(sequence)
        for partition, sequence in (each.split(".") for each in place[2].split("-"))
    }
    for each in ranges:
        if known.get(each.partition, 0) > each.high_watermark:
            raise Refused(409, "that position lies beyond the log")
    return {each.partition: known.get(each.partition, 0) for each in ranges}


OPERATIONS = (
    Operation(
        "GET", "/topics/{topic:path}/stream", "r", "stream",
        "Events as they come (server-sent events)", stream,
        {200: "events; Last-Event-ID goes on after one", 404: "there is no such topic",
         409: "the position is of another history, or beyond the log"},
        queries=(
            Parameter("partition", "integer", "of this one only"),
            Parameter("from", "string", "latest or earliest; latest"),
            Parameter("after", "string", "the same as Last-Event-ID"),
        ),
        gives="text/event-stream",
    ),
)  # fmt: skip
