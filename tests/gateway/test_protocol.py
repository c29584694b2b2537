"""The limits of a connection, before anybody is authenticated."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from threading import Event, Thread
from typing import Any

import pytest
import uvicorn

from consumers.gateway.protocol import MAX_HEAD_BYTES, BoundedProtocol
from tests.kit.log import wait_until
from tests.kit.proof import proves

GOOD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
BOTH_LENGTHS = (
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0"
)


ended: list[str] = []
answered = Event()
LARGE = 8_000_000


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers once the body is whole; what lies below /long without an end."""
    while (await receive()).get("more_body"):
        pass
    if scope["path"].startswith("/wait"):
        answering = asyncio.ensure_future(asyncio.to_thread(answered.wait, 10))
        gone = asyncio.ensure_future(receive())
        await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            ended.append(scope["path"])
            return
    if scope["path"].startswith("/large"):
        headers = [(b"content-length", b"%d" % LARGE)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * (LARGE - 2) + b"ok"})
        return
    if scope["path"].startswith("/long"):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not ended:
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            if (await receive_now(receive))["type"] == "http.disconnect":
                ended.append(scope["path"])
        return
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


async def receive_now(receive: Any) -> Any:
    """What there is to receive at this moment."""
    try:
        async with asyncio.timeout(0.001):
            return await receive()
    except TimeoutError:
        return {"type": "nothing"}


@pytest.fixture(scope="module")
def server() -> Iterator[uvicorn.Server]:
    """A server with a deadline of a moment, and few connections."""
    limits: dict[str, Any] = {"request_seconds": 0.4, "max_connections": 8}
    config = uvicorn.Config(
        app,
        http=type("Protocol", (BoundedProtocol,), limits),
        ws="none",
        lifespan="off",
        log_config=None,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
        thread.start()
        wait_until(lambda: server.started, "the server runs")
        yield server
        server.should_exit = True
        thread.join()


@pytest.fixture
def port(server: uvicorn.Server) -> int:
    """Its port, once the connections of other tests are gone."""
    wait_until(lambda: not server.server_state.connections, "nobody is connected")
    return int(server.servers[0].sockets[0].getsockname()[1])


def opened(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def replied(made: socket.socket) -> bytes:
    """All that comes until the server closes, or until an answer is whole."""
    got = b""
    while b"ok" not in got:
        try:
            part = made.recv(65_536)
        except ConnectionResetError:
            break
        if not part:
            break
        got += part
    return got


def sent(port: int, data: bytes) -> bytes:
    with closing(opened(port)) as made:
        made.sendall(data)
        return replied(made)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GOOD, b"200"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", b"400"),
        (BOTH_LENGTHS, b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n", b"431"),
        (b"nonsense\r\n\r\n", b"400"),
    ],
)
def test_requests_that_are_taken_and_not(port: int, request_: bytes, status: bytes) -> None:
    assert sent(port, request_).startswith(b"HTTP/1.1 " + status)


def test_a_header_without_an_end_is_cut_off_and_others_are_served(port: int) -> None:
    with closing(opened(port)) as made:
        made.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
        count = 0
        with pytest.raises(OSError):
            while count < 64:
                made.sendall(b"x" * 1_000_000)
                count += 1
        assert count < 64
    assert sent(port, GOOD).endswith(b"ok")


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"GET / HT",
        b"\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nbody",
    ],
)
def test_what_does_not_arrive_in_time_is_408(port: int, part: bytes) -> None:
    assert sent(port, part).startswith(b"HTTP/1.1 408")


def test_two_requests_on_one_connection_are_served_and_an_idle_one_stays(port: int) -> None:
    with closing(opened(port)) as made:
        for _ in range(2):
            made.sendall(GOOD)
            assert replied(made).startswith(b"HTTP/1.1 200")


def test_empty_lines_after_an_answer_keep_no_connection(port: int) -> None:
    with closing(opened(port)) as made:
        made.sendall(GOOD)
        assert replied(made).startswith(b"HTTP/1.1 200")
        made.sendall(b"\r\n")
        assert replied(made).startswith(b"HTTP/1.1 408")


def test_a_caller_that_does_not_take_its_answer_is_cut_off(port: int) -> None:
    ended.clear()
    with closing(opened(port)) as made:
        made.sendall(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n")
        wait_until(lambda: ended, "the application is told")


def read_slowly(made: socket.socket, size: int, seconds: float) -> int:
    """Take parts, with a rest after each; returns how much was taken."""
    taken = 0
    while part := made.recv(size):
        taken += len(part)
        if part.endswith(b"ok"):
            break
        answered.wait(seconds)
    return taken


def test_a_slow_caller_that_goes_on_taking_gets_a_long_answer_whole(port: int) -> None:
    """Longer than a caller may take nothing; without the marks of progress it is cut off."""
    answered.clear()
    with closing(socket.socket()) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        made.connect(("127.0.0.1", port))
        made.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        begun = time.monotonic()
        assert read_slowly(made, 131_072, 0.02) > LARGE
        assert time.monotonic() - begun > 0.8


def test_a_caller_that_takes_nothing_keeps_no_connection(server: uvicorn.Server, port: int) -> None:
    """Also when the answer was written, and the connection was to be closed after it."""
    with closing(socket.socket()) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        made.connect(("127.0.0.1", port))
        made.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        wait_until(lambda: not server.server_state.connections, "it is cut off")


@proves("a caller that hung up", guard="one request at a time")
def test_a_request_before_the_answer_to_another_hides_no_caller(port: int) -> None:
    ended.clear()
    answered.clear()
    with closing(opened(port)) as made:
        made.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n" + GOOD)
    wait_until(lambda: ended == ["/wait"], "the application is told")


def test_a_request_before_the_answer_to_another_is_not_taken(port: int) -> None:
    """The first one is answered, and then the connection ends."""
    answered.clear()
    with closing(opened(port)) as made:
        made.sendall(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n" + GOOD)
        answered.set()
        got = b""
        while part := made.recv(65_536):
            got += part
    assert (got.count(b"HTTP/1.1"), got[-2:]) == (1, b"ok")


def test_more_connections_than_there_may_be_are_closed(port: int) -> None:
    kept = [opened(port) for _ in range(8)]
    try:
        for each in kept:
            each.sendall(GOOD)
            assert replied(each)
        with closing(opened(port)) as one_more:
            assert one_more.recv(1) == b""
    finally:
        for each in kept:
            each.close()
    wait_until(lambda: sent(port, GOOD).endswith(b"ok"), "there is room again")
