"""One HTTP call to an address that somebody else may have chosen, without reaching inside.

The host is resolved once. If any of its addresses is not public, nothing is connected. The
connection then goes to the very address that was checked, so a resolver that changes its answer
gains nothing. The host's name stays the name in TLS and in the `Host` header. No redirect is
followed and no proxy is read. One deadline holds for the whole call: resolving, connecting, TLS,
sending and reading. A receiver that sends one byte at a time does not extend it.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Mapping
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
        self._busy = False
        self._closed = False

    def post(self, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        """POST the body.  SinkUnavailable when no answer came in time."""
        with self._lock:
            self._busy = True
        try:
            return self._answered(headers, body, time.monotonic() + self._seconds)
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
            stream, busy = self._stream, self._busy
        if stream is not None and busy:
            # It wakes the other thread, which then closes the socket itself: until then, its number
            # must not become another file's.
            with suppress(OSError):
                socket.socket.shutdown(stream.socket, socket.SHUT_RDWR)
        elif not busy:
            self._drop()

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
            raise ConnectionAbortedError("the channel was closed")
        self._stream.begin(deadline)
        return self._stream

    def _connect(self, deadline: float) -> socket.socket:
        place = self._place
        found = allowed_addresses(place, self._wall, _left(deadline))
        error: OSError = OSError("the host has no address")
        for number, (family, address) in enumerate(found):
            try:
                # One address that does not respond leaves time for the others.
                made = dial(family, address, _left(deadline) / (len(found) - number))
            except OSError as failed:
                error = failed
                continue
            try:
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if place.scheme == "http":
                    return made
                made.settimeout(_left(deadline))
                context = self._tls or ssl.create_default_context()
                return context.wrap_socket(made, server_hostname=place.host)
            except BaseException:
                made.close()
                raise
        raise error

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.socket.close()


def allowed_addresses(place: HttpPlace, wall: Wall, seconds: float) -> list[tuple[int, Any]]:
    """The addresses of a place, resolved once: all may be reached, or SinkMisconfigured."""
    found = _resolved(place, seconds)
    for _, address in found:
        if not wall.lets(address[0]):
            raise SinkMisconfigured(
                f"the webhook's host {place.host} has the address {address[0]}, which is not "
                "public",
                hint=f"name a public host, or allow its network: {ALLOW_VARIABLE}=10.1.0.0/16",
            )
    return found


def dial(family: int, address: Any, seconds: float) -> socket.socket:
    """A connection to a resolved address."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.settimeout(seconds)
        made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def _resolved(place: HttpPlace, seconds: float) -> list[tuple[int, Any]]:
    """Each family and address of the host.

    The system's resolver has a time limit of its own, so it is asked on a thread that is not waited
    for any longer than the call may take.
    """
    found: list[Any] = []

    def ask() -> None:
        try:
            kinds = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
            found.extend((family, address) for family, _, _, _, address in kinds)
        except (OSError, UnicodeError) as error:
            found.append(error)

    thread = threading.Thread(target=ask, daemon=True, name="penstock-resolve")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError("the resolver did not answer")
    if found and isinstance(found[0], Exception):
        raise SinkUnavailable(f"the webhook's host {place.host} cannot be resolved: {found[0]}")
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
