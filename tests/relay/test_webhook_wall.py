"""What a webhook cannot reach, however its address is written and whatever answers on the way."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ops.sinks import guarded_http
from ops.sinks.address import open_sink
from ops.sinks.base import SinkLease, SinkMisconfigured, SinkUnavailable
from ops.sinks.guarded_http import MOST_BYTES, Caller, HttpPlace, Wall
from ops.sinks.public_addresses import is_public, parsed
from penstock.errors import ConfigurationError, PenstockError
from tests.kit import certificates
from tests.kit.proof import proves
from tests.relay.blocks import TOPIC, block
from tests.relay.receivers import SECRET, Receiver, Says, receiving

LEASE = SinkLease("to-the-sink", TOPIC, TOPIC, 0, 1, 1)

#: Each is one of this machine's own addresses, or one that a machine must not be led to.
FORMS = (
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "0x7f000001",
    "0x7f.1",
    "0",
    "0.0.0.0",
    "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460",  # circled digits
    "\uff11\uff12\uff17.\uff10.\uff10.\uff11",  # full-width digits
    "127\u30020\u30020\u30021",  # ideographic dots
    "127\uff0e0\uff0e0\uff0e1",
    "localhost",
    "LOCALHOST",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::7f00:1]",
    "[2002:7f00:1::]",
    "[fec0::1]",
    "[fe80::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
    "[3fff::1]",
    "[5f00::1]",
    "[2001::1]",
    "[2001:db8::1]",
    "[::ffff:0:169.254.169.254]",
    "10.0.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.169.254",
    "169.254.170.2",
    "172.31.255.255",
    "192.0.0.192",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
)
#: Those that this machine's resolver takes to its loopback: without the guard they reach it.
LOOPBACK = (*FORMS[:16], "[::ffff:127.0.0.1]", "[::ffff:7f00:1]")


@pytest.fixture
def inside() -> Iterator[Receiver]:
    """A server that nobody outside is meant to reach."""
    with receiving() as made:
        yield made


def environ_of(inside: Receiver) -> dict[str, str]:
    """A process that allows http and the port, so that only the address is in the way."""
    return {
        "PENSTOCK_WEBHOOK_ALLOW": f"http {inside.port}",
        "PENSTOCK_WEBHOOK_SECRET": SECRET,
    }


def attempt(host: str, inside: Receiver, **environ: str) -> PenstockError | None:
    """One block to this host at the server's port."""
    address = f"webhook+http://{host}:{inside.port}/in#seconds=3"
    try:
        sink = open_sink(address, environ=environ_of(inside) | environ)
        with closing(sink.open(LEASE)) as channel:
            channel.send_block(block(1, 1))
    except PenstockError as error:
        return error
    return None


@proves("no webhook leads inside")
@pytest.mark.parametrize("host", FORMS)
def test_no_form_of_an_address_reaches_inside(inside: Receiver, host: str) -> None:
    error = attempt(host, inside)
    assert inside.calls == []
    assert inside.connections == 0
    # A form that this machine's resolver does not know is refused by it.
    assert isinstance(error, SinkMisconfigured | SinkUnavailable | ConfigurationError)
    if host in LOOPBACK:
        assert "which is not public" in str(error)


@proves("no webhook leads inside", guard="the table")
@pytest.mark.parametrize("host", LOOPBACK)
def test_without_the_table_each_form_of_loopback_reaches_it(
    inside: Receiver, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(guarded_http, "is_public", lambda _: True)
    assert attempt(host, inside) is None
    assert len(inside.calls) == 1


def test_the_preflight_says_it_before_anything_is_sent(inside: Receiver) -> None:
    sink = open_sink(f"webhook+http://127.1:{inside.port}/in", environ=environ_of(inside))
    with pytest.raises(SinkMisconfigured, match=r"has the address 127\.0\.0\.1") as caught:
        sink.preflight(TOPIC, 1)
    assert "PENSTOCK_WEBHOOK_ALLOW" in (caught.value.hint or "")
    assert inside.connections == 0


def answers(*addresses: str) -> Callable[..., list[Any]]:
    """A resolver that gives these addresses, in this order."""

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    return resolve


@proves("no webhook leads inside")
def test_a_name_that_leads_inside_is_refused(
    inside: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when another address of the name is public."""
    for addresses in (("127.0.0.1",), ("8.8.8.8", "127.0.0.1"), ("127.0.0.1", "8.8.8.8")):
        monkeypatch.setattr(socket, "getaddrinfo", answers(*addresses))
        error = attempt("hooks.example.org", inside)
        assert isinstance(error, SinkMisconfigured)
    assert inside.connections == 0


@proves("no webhook leads inside")
def test_a_resolver_that_changes_its_answer_gains_nothing(
    inside: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once for each connection, and what it said then is what is dialled."""
    said = itertools.chain(["8.8.8.8"], itertools.repeat("127.0.0.1"))
    asked: list[str] = []
    dialled: list[str] = []

    def resolve(host: str, port: int, **rest: Any) -> list[Any]:
        asked.append(next(said))
        return answers(asked[-1])(host, port, **rest)

    def dial(_family: int, address: Any, *_: Any) -> socket.socket:
        dialled.append(address[0])
        raise OSError("no route to host")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(guarded_http, "dial", dial)
    assert isinstance(attempt("hooks.example.org", inside), SinkUnavailable)
    assert asked == dialled == ["8.8.8.8"]
    for _ in range(3):
        assert isinstance(attempt("hooks.example.org", inside), SinkMisconfigured)
    assert dialled == ["8.8.8.8"]
    assert inside.connections == 0


@proves("no webhook leads inside")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(inside: Receiver, status: int) -> None:
    with receiving() as outside:
        to = f"http://127.0.0.1:{inside.port}/in"
        outside.answer = lambda _: Says(status, {"Location": to})
        error = attempt("127.0.0.1", outside, PENSTOCK_WEBHOOK_ALLOW=f"http {outside.port} "
                        f"{inside.port} 127.0.0.1/32")  # fmt: skip
        assert isinstance(error, SinkMisconfigured)
        assert len(outside.calls) == 1
    assert inside.connections == 0


@proves("no webhook leads inside")
def test_no_proxy_is_read(inside: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{inside.port}")
        monkeypatch.setenv(name.upper(), f"http://127.0.0.1:{inside.port}")
    with receiving() as outside:
        allowed = f"http {outside.port} 127.0.0.1/32"
        assert attempt("127.0.0.1", outside, PENSTOCK_WEBHOOK_ALLOW=allowed) is None
        assert len(outside.calls) == 1
    assert inside.connections == 0


@proves("no webhook leads inside")
def test_the_token_endpoint_has_the_same_wall(inside: Receiver) -> None:
    with receiving() as outside:
        login = {
            "PENSTOCK_WEBHOOK_ALLOW": f"http {outside.port} {inside.port} 127.0.0.1/32",
            "PENSTOCK_WEBHOOK_OAUTH_URL": f"http://127.0.0.2:{inside.port}/token",
            "PENSTOCK_WEBHOOK_OAUTH_CLIENT_ID": "c",
            "PENSTOCK_WEBHOOK_OAUTH_CLIENT_SECRET": "s",
        }
        assert isinstance(attempt("127.0.0.1", outside, **login), SinkMisconfigured)
        assert outside.calls == []
    assert inside.connections == 0


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1", "2a00::1",
                "::ffff:8.8.8.8", "64:ff9b::808:808"]
)  # fmt: skip
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(parsed(address))


def test_what_the_table_is_for() -> None:
    """The standard library calls some of these public, and which ones depends on its version."""
    wrong = [each for each in FORMS if each.startswith("[") and ip_address(each[1:-1]).is_global]
    assert "[64:ff9b::7f00:1]" in wrong
    assert not any(is_public(parsed(each[1:-1])) for each in wrong)


def test_a_word_of_the_wall_that_is_nothing_is_said() -> None:
    with pytest.raises(ConfigurationError, match="neither http, a port nor a network"):
        Wall.of({"PENSTOCK_WEBHOOK_ALLOW": "http everything"})


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, Caller]]:
    """A listening socket, and a caller of it that has 0.6 s."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        wall = Wall.of({"PENSTOCK_WEBHOOK_ALLOW": f"http {port} 127.0.0.1/32"})
        place = HttpPlace.of(urlsplit(f"http://127.0.0.1:{port}/"), wall, "it")
        caller = Caller(place, wall, 0.6)
        yield listening, caller
        caller.close()


def served(listening: socket.socket, *pieces: bytes, pause: float = 0) -> threading.Thread:
    """Answer one connection with these pieces."""

    def serve() -> None:
        connected, _ = listening.accept()
        with connected:
            connected.recv(65_536)
            for piece in pieces:
                try:
                    connected.sendall(piece)
                except OSError:
                    return
                time.sleep(pause)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


DRIP = (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n", *[b"x"] * 20)


@proves("no webhook leads inside", guard="the one deadline")
def test_one_deadline_holds_for_an_answer_that_drips(
    wire: tuple[socket.socket, Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    listening, caller = wire
    thread = served(listening, *DRIP, pause=0.05)
    with pytest.raises(SinkUnavailable, match=r"took too long|timed out"):
        caller.post({}, b"{}")
    thread.join(20)
    # With a time limit for each read instead, the call goes on.
    monkeypatch.setattr(guarded_http, "_left", lambda _: 0.6)
    thread = served(listening, *DRIP, pause=0.05)
    assert caller.post({}, b"{}").body == b"x" * 20
    thread.join(20)


def test_a_long_answer_is_cut(wire: tuple[socket.socket, Caller]) -> None:
    listening, caller = wire
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"
    thread = served(listening, head + b"x" * 300_000)
    assert len(caller.post({}, b"{}").body) == MOST_BYTES
    thread.join(20)
    # The next call is made on a connection of its own, so the rest is not taken for its answer.
    thread = served(listening, b"HTTP/1.1 204 No Content\r\n\r\n")
    assert caller.post({}, b"{}").status == 204
    thread.join(20)


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 100 Continue\r\n\r\n", b"x: " + b"y" * 60_000 + b"\r\n"]
)
def test_endless_headers_end(wire: tuple[socket.socket, Caller], head: bytes) -> None:
    listening, caller = wire
    first = b"" if head.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\n"
    thread = served(listening, first + head * (2_000_000 // len(head)))
    with pytest.raises(SinkUnavailable):
        caller.post({}, b"{}")
    thread.join(20)


@pytest.mark.parametrize("line", [b"\x00\x00\x12 echo", b"HTTP/9.echo 200 OK"])
def test_what_is_no_http_is_not_repeated(wire: tuple[socket.socket, Caller], line: bytes) -> None:
    """It may be anything: bytes that no table takes, and the secrets that it was sent."""
    listening, caller = wire
    thread = served(listening, line + b"\r\n\r\n")
    with pytest.raises(SinkUnavailable) as told:
        caller.post({}, b"{}")
    assert "no HTTP" in str(told.value)
    assert "echo" not in str(told.value)
    thread.join(20)


def test_a_resolver_that_hangs_is_not_waited_for(
    wire: tuple[socket.socket, Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, caller = wire
    hangs = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [hangs.wait(20)][:0])
    with pytest.raises(SinkUnavailable, match="the resolver did not answer"):
        caller.post({}, b"{}")
    hangs.set()


def test_a_kept_connection_that_was_closed_is_made_again(
    wire: tuple[socket.socket, Caller],
) -> None:
    listening, caller = wire
    for _ in range(2):
        thread = served(listening, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        assert json.loads(caller.post({}, b"{}").body) == {}
        thread.join(20)


@proves("no webhook leads inside")
def test_the_name_in_tls_is_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection goes to a number, and the certificate must still be that of the name."""
    made = certificates.make(tmp_path, "hooks.example.org")
    monkeypatch.setattr(socket, "getaddrinfo", answers("127.0.0.1"))
    for host, taken in (("hooks.example.org", 2), ("other.example.org", 0)):
        with receiving(tls=made.server) as receiver:
            environ = receiver.environ(PENSTOCK_WEBHOOK_CA_FILE=str(made.authority))
            error = send_over_tls(host, receiver, environ)
            assert (error is None) == bool(taken)
            assert len(receiver.calls) == taken
            assert {call.headers["host"] for call in receiver.calls} <= {f"{host}:{receiver.port}"}


def test_an_unknown_authority_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = certificates.make(tmp_path, "hooks.example.org")
    monkeypatch.setattr(socket, "getaddrinfo", answers("127.0.0.1"))
    with receiving(tls=made.server) as receiver:
        error = send_over_tls("hooks.example.org", receiver, receiver.environ())
        assert "PENSTOCK_WEBHOOK_CA_FILE" in str(error)
        assert receiver.calls == []


def send_over_tls(host: str, receiver: Receiver, environ: dict[str, str]) -> PenstockError | None:
    """Two events."""
    sink = open_sink(f"webhook+https://{host}:{receiver.port}/in", environ=environ)
    try:
        with closing(sink.open(LEASE)) as channel:
            channel.send_block(block(1, 2))
    except SinkUnavailable as error:
        return error
    return None
