"""Load for a gateway, or for anything that speaks SQS: many connections in one process.

``python -m benchmarks.gateway_load`` reads a JSON object: how, the port, and what is sent. It
prints another one. A request is bytes that are ready, so that little of the processor is its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import resource
import sys
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import uvloop

HOST = "127.0.0.1"
REGION = "eu-west-1"
#: Of an open loop, so many requests may be under way.
MOST_OPEN = 256
_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_WAIT_SECONDS = 30


class Connection(asyncio.Protocol):
    """Sends one request at a time, and reads its whole answer."""

    def __init__(self) -> None:
        self._data = b""
        self._whole = 0
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._whole:
            end = self._data.find(_END)
            if end < 0:
                return
            self._whole = end + len(_END) + _length(self._data[:end])
        if len(self._data) >= self._whole:
            answer, self._data = self._data[: self._whole], self._data[self._whole :]
            self._whole = 0
            if self._answer is not None:
                self._answer.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the connection was closed"))

    async def ask(self, request: bytes) -> bytes:
        """The body of the answer, which has to be 2xx."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        answer = await self._answer
        if not answer.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(answer[:600].decode("latin-1"))
        return answer.partition(_END)[2]

    def hold(self, request: bytes) -> None:
        """Send it, and wait for nothing."""
        self._transport.write(request)


def _length(head: bytes) -> int:
    """The length of the body.  Every answer here says it, but for 204."""
    low = head.lower()
    at = low.find(_LENGTH)
    if at < 0:
        return 0
    return int(low[at + len(_LENGTH) :].partition(b"\r")[0])


async def connections(port: int, count: int) -> list[Connection]:
    """So many connections."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Connection, HOST, port))[1] for _ in range(count)]


async def closed(port: int, requests: Sequence[bytes], connections_: int, count: int) -> Any:
    """Each connection sends its next request after the answer.  Returns the seconds."""
    opened = await connections(port, connections_)
    left = iter(range(count))

    async def send(number: int, each: Connection) -> None:
        request = requests[number % len(requests)]
        for _ in left:
            await each.ask(request)

    begun = perf_counter()
    await asyncio.gather(*(send(*each) for each in enumerate(opened)))
    return {"seconds": perf_counter() - begun}


async def paced(port: int, requests: Sequence[bytes], rate: int, count: int) -> Any:
    """An open loop: requests at their times, whatever becomes of the earlier ones."""
    free = deque(await connections(port, MOST_OPEN))
    came = asyncio.Event()
    late: list[float] = []

    async def send(due: float, number: int) -> None:
        while not free:
            came.clear()
            await came.wait()
        each = free.pop()
        await each.ask(requests[number % len(requests)])
        late.append(1_000 * (perf_counter() - due))
        free.append(each)
        came.set()

    begun, tasks = perf_counter(), []
    for number in range(count):
        due = begun + number / rate
        if due > perf_counter():
            await asyncio.sleep(due - perf_counter())
        tasks.append(asyncio.create_task(send(due, number)))
    await asyncio.gather(*tasks)
    return {"milliseconds": late}


async def held(port: int, requests: Sequence[bytes], count: int) -> Any:
    """Send each of them so many times and say so; end with the standard input."""
    room = len(requests) * count + 256
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (room, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    )
    for request in requests:
        for each in await connections(port, count):
            each.hold(request)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    return {}


class Sqs:
    """Calls of SQS, signed as SDKs do it, each with an id of its own."""

    def __init__(self, port: int, key_id: str, secret: str) -> None:
        self._host = f"{HOST}:{port}"
        self._key_id = key_id
        now = datetime.now(UTC)
        self._date, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        self._scope = f"{day}/{REGION}/sqs/aws4_request"
        key = f"AWS4{secret}".encode()
        for part in self._scope.split("/"):
            key = _hmac(key, part)
        self._key = key
        self._calls = 0

    def signed(self, target: str, body: bytes) -> tuple[bytes, bytes]:
        """A call in two parts, between which its id belongs: SDKs do not sign that."""
        target = f"AmazonSQS.{target}"
        lines = (
            f"POST\n/\n\ncontent-type:application/x-amz-json-1.0\nhost:{self._host}\n"
            f"x-amz-date:{self._date}\nx-amz-target:{target}\n\n"
            f"content-type;host;x-amz-date;x-amz-target\n{hashlib.sha256(body).hexdigest()}"
        )
        digest = hashlib.sha256(lines.encode()).hexdigest()
        base = f"AWS4-HMAC-SHA256\n{self._date}\n{self._scope}\n{digest}"
        head = (
            f"POST / HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n"
            f"Content-Type: application/x-amz-json-1.0\r\nX-Amz-Date: {self._date}\r\n"
            f"X-Amz-Target: {target}\r\nAuthorization: AWS4-HMAC-SHA256"
            f" Credential={self._key_id}/{self._scope},"
            " SignedHeaders=content-type;host;x-amz-date;x-amz-target,"
            f" Signature={_hmac(self._key, base).hex()}\r\namz-sdk-invocation-id: "
        )
        return head.encode(), _END + body

    def call(self, signed: tuple[bytes, bytes]) -> bytes:
        """The call, with a new id."""
        self._calls += 1
        return b"%bbench-%026d%b" % (signed[0], self._calls, signed[1])


async def sqs(given: dict[str, Any]) -> Any:
    """Send messages by ten; with ``cycle``, receive and delete them too.  Returns the seconds."""
    made = Sqs(given["port"], given["key_id"], given["secret"])
    url, left = given["url"], {"sent": given["count"], "received": given["count"]}
    ended: list[float] = []
    entries = [{"Id": str(each), "MessageBody": "x" * 200} for each in range(10)]
    send = made.signed("SendMessageBatch", _json({"QueueUrl": url, "Entries": entries}))
    wanted = {"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1}
    receive = made.signed("ReceiveMessage", _json(wanted))

    async def send_one(each: Connection) -> None:
        left["sent"] -= 10
        reply = json.loads(await each.ask(made.call(send)))
        if len(reply["Successful"]) != len(entries):
            raise RuntimeError(str(reply)[:500])

    async def take(each: Connection) -> None:
        found = json.loads(await each.ask(made.call(receive))).get("Messages", [])
        if found:
            left["received"] -= len(found)
            handles = [
                {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(found)
            ]
            body = _json({"QueueUrl": url, "Entries": handles})
            await each.ask(made.call(made.signed("DeleteMessageBatch", body)))
            ended.append(perf_counter())

    async def work(each: Connection) -> None:
        while left["sent"] > 0:
            await send_one(each)
            if given["cycle"]:
                await take(each)
        while given["cycle"] and left["received"] > 0:
            await take(each)

    opened = await connections(given["port"], given["connections"])
    begun = perf_counter()
    await asyncio.gather(*map(work, opened))
    # Who polls at the end is answered when its time is over: that counts for nobody.
    return {"seconds": (max(ended) if ended else perf_counter()) - begun}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def main() -> None:
    """Do what the standard input says."""
    given = json.loads(sys.stdin.readline())
    how, requests = given.pop("how"), [each.encode() for each in given.pop("requests", [])]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ways: dict[str, Any] = {"closed": closed, "paced": paced, "held": held}
        work = sqs(given) if how == "sqs" else ways[how](requests=requests, **given)
        json.dump(runner.run(work), sys.stdout)


if __name__ == "__main__":
    main()
