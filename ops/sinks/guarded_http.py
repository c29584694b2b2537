"""One HTTP call to an address that somebody else may have chosen, without reaching inside.

The host is resolved once. If any of its addresses is not public, nothing is connected. The
connection then goes to the very address that was checked, so a resolver that changes its answer
gains nothing. The host's name stays the name in TLS and in the `Host` header. No redirect is
followed and no proxy is read. One deadline holds for the whole call: resolving, connecting, TLS,
sending and reading. A receiver that sends one byte at a time does not extend it.
"""

from __future__ import annotations

import http.client
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from ipaddress import ip_network
from typing import Any
from urllib.parse import SplitResult

from ops.sinks.base import SinkMisconfigured, SinkUnavailable
from ops.sinks.public_addresses import is_public, parsed
from penstock.errors import ConfigurationError

ALLOW_VARIABLE = "PENSTOCK_WEBHOOK_ALLOW"
#: How much of a body is read.
MOST_BYTES = 64 << 10

_PORTS = {"https": 443, "http": 80}
#: Their texts are what the receiver has sent.
_NO_HTTP = (http.client.BadStatusLine, http.client.UnknownProtocol)
_WIRE_BYTES = 4 * MOST_BYTES  # status line, headers and the framing of chunks included


@dataclass(frozen=True, slots=True)
class Wall:
    """What calls may reach besides public addresses: ports, networks, and whether without TLS.

    It comes from the environment of the process, so whoever writes an address cannot open it.
    """

    http: bool = False
    ports: frozenset[int] = frozenset()
    networks: tuple[Any, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Wall:
        """The wall of an environment: `PENSTOCK_WEBHOOK_ALLOW="http 8443 10.1.0.0/16"`."""
        ports, networks, plain = set(), [], False
        for word in environ.get(ALLOW_VARIABLE, "").split():
            if word == "http":
                plain = True
            elif word.isdecimal():
                ports.add(int(word))
            else:
                networks.append(_network(word))
        return cls(plain, frozenset(ports), tuple(networks))

    def lets(self, address: str) -> bool:
        """Whether a resolved address may be reached."""
        found = parsed(address)
        return is_public(found) or any(found in each for each in self.networks)


def _network(word: str) -> Any:
    try:
        return ip_network(word)
    except ValueError as error:
        raise ConfigurationError(
            f"{ALLOW_VARIABLE} has a word that is neither http, a port nor a network: {word!r}",
            hint=f"write for example {ALLOW_VARIABLE}='http 8080 10.1.0.0/16'",
        ) from error


@dataclass(frozen=True, slots=True)
class HttpPlace:
    """Where a call goes: parsed and checked against the wall, not resolved yet."""

    scheme: str
    host: str
    port: int
    target: str

    @classmethod
    def of(cls, parts: SplitResult, wall: Wall, what: str) -> HttpPlace:
        """The place of an http or https address.  ConfigurationError when it may not be called."""
        scheme, host = parts.scheme.rpartition("+")[2], _ascii(parts.hostname or "", what)
        if scheme not in _PORTS:
            raise ConfigurationError(
                f"{what} does not begin with https://", hint="write https://HOST/PATH"
            )
        try:
            port = parts.port if parts.port is not None else _PORTS[scheme]
        except ValueError as error:
            raise ConfigurationError(f"{what} has a port that is no number") from error
        if "@" in parts.netloc:
            raise ConfigurationError(
                f"{what} has a login in it", hint="leave it out; logins come from the environment"
            )
        if scheme == "http" and not wall.http:
            raise ConfigurationError(
                f"{what} is not https, so everybody on the way could read the events",
                hint=f"write https, or allow it: {ALLOW_VARIABLE}=http",
            )
        if port not in {*_PORTS.values(), *wall.ports}:
            raise ConfigurationError(
                f"{what} has port {port}, which is not allowed",
                hint=f"allow it: {ALLOW_VARIABLE}={port}",
            )
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        if not target.isascii() or any(each <= " " or each == "\x7f" for each in target):
            raise ConfigurationError(
                f"{what} has characters that an address cannot have",
                hint="write them as percent and two digits",
            )
        return cls(scheme, host, port, target)

    @property
    def header(self) -> str:
        """The `Host` header."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"


def _ascii(host: str, what: str) -> str:
    """The host as resolvers, TLS and headers know it.

    Full-width digits, for one, become digits here.
    """
    try:
        found = host.encode("idna").decode("ascii") if not host.isascii() else host
    except UnicodeError:
        found = ""
    if not found or any(each <= " " for each in found):
        raise ConfigurationError(
            f"{what} has no host, or one that is no name", hint="write https://HOST/PATH"
        )
    return found


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What the receiver answered; of the body at most 64 KiB."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Caller:
    """Calls one place, over a connection that is kept between calls.  For one thread."""

    def __init__(
        self, place: HttpPlace, wall: Wall, seconds: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._place = place
        self._wall = wall
        self._seconds = seconds
        self._tls = tls
        self._lock = threading.Lock()
        self._stream: _Stream | None = None
        self._used: socket.socket | None = None
        self._resolving: queue.SimpleQueue[Any] | None = None
        self._busy = False
        self._closed = False

    def post(
        self, headers: Mapping[str, str], body: bytes, deadline: float | None = None
    ) -> HttpAnswer:
        """POST the body.  SinkUnavailable when no answer came by the deadline, or in time."""
        with self._lock:
            self._busy = True
        try:
            ends = time.monotonic() + self._seconds
            return self._answered(headers, body, ends if deadline is None else deadline)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            raise _unavailable(self._place, error) from error
        finally:
            with self._lock:
                self._busy = False
            if self._closed:
                self._drop()

    def close(self) -> None:
        """Close the connection, also from another thread in the middle of a call."""
        with self._lock:
            self._closed = True
            used, resolving, busy = self._used, self._resolving, self._busy
        if not busy:
            self._drop()
            return
        if resolving is not None:
            resolving.put(_ended())
        if used is not None:
            # It wakes the other thread, which then closes the socket itself: until then, its number
            # must not become another file's.
            with suppress(OSError):
                socket.socket.shutdown(used, socket.SHUT_RDWR)

    def _answered(self, headers: Mapping[str, str], body: bytes, deadline: float) -> HttpAnswer:
        kept = self._stream is not None
        try:
            return self._post(headers, body, deadline)
        except ConnectionError:
            # The receiver may have closed a kept connection meanwhile. Then the call is made again,
            # once, on a new one.
            if not kept or self._closed:
                raise
            self._drop()
        return self._post(headers, body, deadline)

    def _post(self, headers: Mapping[str, str], body: bytes, deadline: float) -> HttpAnswer:
        stream = self._connected(deadline)
        connection = http.client.HTTPConnection(self._place.host, self._place.port)
        connection.sock = stream
        connection.putrequest("POST", self._place.target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", self._place.header)
        connection.putheader("Content-Length", str(len(body)))
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        found = response.read(MOST_BYTES)
        # What is left of a longer body is not read, so the connection cannot be used again.
        if response.will_close or not response.isclosed():
            self._drop()
        return HttpAnswer(response.status, dict(response.headers.items()), found)

    def _connected(self, deadline: float) -> _Stream:
        if self._stream is None:
            self._stream = _Stream(self._connect(deadline))
        if self._closed:
            self._drop()
            raise _ended()
        self._stream.begin(deadline)
        return self._stream

    def _connect(self, deadline: float) -> socket.socket:
        place = self._place
        with self._lock:
            self._resolving = queue.SimpleQueue()
        self._require_open()
        found = allowed_addresses(place, self._wall, _left(deadline), self._resolving)
        error: OSError = OSError("the host has no address")
        for number, (family, address) in enumerate(found):
            self._require_open()
            try:
                # One address that does not respond leaves time for the others.
                seconds = _left(deadline) / (len(found) - number)
                made = dial(family, address, seconds, self._use)
            except OSError as failed:
                error = failed
                continue
            try:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return made if place.scheme == "http" else self._with_tls(made, deadline)
            except BaseException:
                made.close()
                raise
        raise error

    def _with_tls(self, made: socket.socket, deadline: float) -> socket.socket:
        context = self._tls or ssl.create_default_context()
        wrapped = context.wrap_socket(
            made, server_hostname=self._place.host, do_handshake_on_connect=False
        )
        try:
            self._use(wrapped)
            wrapped.settimeout(_left(deadline))
            wrapped.do_handshake()
        except BaseException:
            wrapped.close()
            raise
        return wrapped

    def _use(self, made: socket.socket) -> None:
        """From now on ``close`` ends what is done on this socket."""
        with self._lock:
            self._used = made
        self._require_open()

    def _require_open(self) -> None:
        if self._closed:
            raise _ended()

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.socket.close()


class Callers:
    """The callers of a channel, which are closed together, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[Caller] = []
        self.closed = False

    def add(self, made: Caller) -> Caller:
        """One more.  SinkUnavailable when the channel was closed."""
        with self._lock:
            self.require_open()
            self._made.append(made)
        return made

    def require_open(self) -> None:
        """SinkUnavailable when the channel was closed."""
        if self.closed:
            raise SinkUnavailable("the channel to the webhook was closed")

    def remove(self, made: Caller) -> None:
        """It was closed by itself."""
        with self._lock, suppress(ValueError):
            self._made.remove(made)

    def close(self) -> None:
        """Close all, also those on which another thread waits for an answer."""
        with self._lock:
            self.closed = True
            made, self._made = self._made, []
        for each in made:
            each.close()


def _ended() -> ConnectionAbortedError:
    return ConnectionAbortedError("the channel was closed")


def allowed_addresses(
    place: HttpPlace, wall: Wall, seconds: float, answers: queue.SimpleQueue[Any] | None = None
) -> list[tuple[int, Any]]:
    """The addresses of a place, resolved once: all may be reached, or SinkMisconfigured.

    An error that another thread puts into ``answers`` ends the wait for the resolver.
    """
    found = _resolved(place, seconds, queue.SimpleQueue() if answers is None else answers)
    for _, address in found:
        if not wall.lets(address[0]):
            raise SinkMisconfigured(
                f"the webhook's host {place.host} has the address {address[0]}, which is not "
                "public",
                hint=f"name a public host, or allow its network: {ALLOW_VARIABLE}=10.1.0.0/16",
            )
    return found


def dial(
    family: int, address: Any, seconds: float, use: Callable[[socket.socket], None]
) -> socket.socket:
    """A connection to a resolved address.  ``use`` is told of the socket before it connects."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        use(made)
        made.settimeout(seconds)
        made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def _resolved(
    place: HttpPlace, seconds: float, answers: queue.SimpleQueue[Any]
) -> list[tuple[int, Any]]:
    """Each family and address of the host.

    The system's resolver has a time limit of its own, so it is asked on a thread that is not waited
    for any longer than the call may take.
    """

    def ask() -> None:
        try:
            kinds = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
            answers.put([(family, address) for family, _, _, _, address in kinds])
        except (OSError, UnicodeError) as error:
            answers.put(
                SinkUnavailable(f"the webhook's host {place.host} cannot be resolved: {error}")
            )

    threading.Thread(target=ask, daemon=True, name="penstock-resolve").start()
    try:
        found: list[tuple[int, Any]] | Exception = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError("the resolver did not answer") from None
    if isinstance(found, Exception):
        raise found
    return found


class _Stream(RawIOBase):
    """What `http.client` needs of a socket, with one deadline over all that is sent and read."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__()
        self.socket = connected
        self._deadline = 0.0
        self._budget = 0

    def begin(self, deadline: float) -> None:
        """A new call begins."""
        self._deadline, self._budget = deadline, _WIRE_BYTES

    def sendall(self, data: bytes) -> None:
        """Send all of it before the deadline."""
        self.socket.settimeout(_left(self._deadline))
        self.socket.sendall(data)

    def makefile(self, _mode: str) -> BufferedReader:
        """What the answer is read from."""
        return BufferedReader(self)

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has come.  An answer of too many bytes, such as of endless headers, fails."""
        if not self._budget:
            raise http.client.HTTPException("the answer is too long")
        self.socket.settimeout(_left(self._deadline))
        count = self.socket.recv_into(buffer, min(len(buffer), self._budget))
        self._budget -= count
        return count

    def close(self) -> None:
        """The caller closes the socket, once the answer is read."""


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the call took too long")
    return left


def _unavailable(place: HttpPlace, error: Exception) -> SinkUnavailable:
    if isinstance(error, ssl.SSLCertVerificationError):
        return SinkUnavailable(
            f"the certificate of {place.host} is not accepted: {error.verify_message}",
            hint="name the authority that signed it in PENSTOCK_WEBHOOK_CA_FILE",
        )
    text = str(error) or type(error).__name__
    if isinstance(error, _NO_HTTP) and not isinstance(error, http.client.RemoteDisconnected):
        text = "what it said is no HTTP/1.1"  # and may be anything, our own secrets too
    return SinkUnavailable(f"the webhook at {place.host} did not answer: {text}")
