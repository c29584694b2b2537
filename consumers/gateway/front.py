"""The application from outside: limits, the request log, CORS; then who calls, and the call."""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Container, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from consumers.gateway.answers import GatewayAnswer, Refused, as_refused, refused
from consumers.gateway.bodies import Bodies, require_length
from consumers.gateway.calls import (
    Gone,
    HttpCall,
    Receive,
    Send,
    Services,
    send_parts,
)
from consumers.gateway.credentials.shown import ShownRequest
from consumers.gateway.operations import Operation
from consumers.gateway.room import PART_BYTES, AnswerShare
from consumers.gateway.settings import GatewaySettings

logger = logging.getLogger("penstock.gateway")

_SERVER_ERROR = 500
_CLIENT_ERROR = 400
#: Of a path, so much is logged: anybody may send one.
_LOGGED = 256
#: No address of a network is longer.
LONGEST_ADDRESS = 64
_QUERY = re.compile(r"[?;]|%3[bf]", re.IGNORECASE)
_PASSED_ON = re.compile(r"forwarded|via|x-forwarded-.*|x-real-ip")
_CORS_HEADERS = "authorization, content-type, content-digest, signature, signature-input"


@dataclass(slots=True)
class Tally:
    """What the gateway has answered."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    present: int = 0


class Front:
    """The outermost application."""

    def __init__(self, inner: Any, settings: GatewaySettings, tally: Tally) -> None:
        self._inner = inner
        self._settings = settings
        self._names = settings.names()
        self._origins = settings.origins()
        self._tally = tally

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        tally, begun = self._tally, time.perf_counter()
        tally.present += 1
        answered = _Answered(send, self._cors(scope))
        try:
            early = self._early(scope)
            if early is not None:
                await answer(answered, early)
            else:
                await self._inner(scope, receive, answered)
        except Exception:
            # Nothing of the request is logged: a body or a header may hold a secret.
            logger.exception("a call failed", extra={"path": _logged_path(scope)})
            if not answered.status:
                problem = Refused(500, "the gateway has failed; its log says why")
                await answer(answered, refused(problem, "", {}))
        finally:
            tally.present -= 1
            tally.requests += 1
            tally.refused += _CLIENT_ERROR <= answered.status < _SERVER_ERROR
            tally.failed += answered.status >= _SERVER_ERROR
            self._log(scope, answered.status, time.perf_counter() - begun)

    def _early(self, scope: Any) -> GatewayAnswer | None:
        """The answer to what needs no handler, or may not have one."""
        host = dict(scope["headers"])[b"host"].decode("latin-1").lower()
        if self._names and not ({host, host.rpartition(":")[0]} & self._names):
            return refused(Refused(421, "this gateway is not called by that name"), "", {})
        if self._tally.present > self._settings.max_requests:
            busy = Refused(503, "too many requests at a time", {"Retry-After": "1"})
            return refused(busy, "", {})
        if scope["method"] == "OPTIONS" and self._cors(scope):
            return GatewayAnswer(204, headers={"Access-Control-Max-Age": "600"})
        return None

    def _cors(self, scope: Any) -> list[tuple[bytes, bytes]]:
        origin = dict(scope["headers"]).get(b"origin", b"").decode("latin-1")
        if not origin or not ({origin.lower(), "*"} & self._origins):
            return []
        told = {
            "access-control-allow-origin": "*" if "*" in self._origins else origin,
            "access-control-allow-methods": "GET, POST, PUT, DELETE",
            "access-control-allow-headers": _CORS_HEADERS,
            "vary": "origin",
        }
        return [(name.encode(), value.encode()) for name, value in told.items()]

    def _log(self, scope: Any, status: int, seconds: float) -> None:
        if self._settings.request_log == "none":
            return
        if self._settings.request_log == "errors" and status < _CLIENT_ERROR:
            return
        # Without the query: a signed address would be a secret.
        told = {
            "method": scope["method"],
            "path": _logged_path(scope),
            "status": status,
            "ms": round(seconds * 1000, 2),
            "address": (scope.get("client") or ("", 0))[0],
        }
        logger.info("request", extra=told | scope.get("told", {}))


@dataclass(slots=True)
class _Answered:
    """Sends, and remembers the status."""

    send: Send
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    status: int = 0

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.headers:
                message["headers"] = [*message.get("headers", []), *self.headers]
        await self.send(message)


class Endpoint:
    """One operation as an application."""

    def __init__(self, services: Services, operation: Operation, bodies: Bodies) -> None:
        self._services = services
        self._operation = operation
        self._bodies = bodies
        self._proxies = services.settings.proxies()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Find out who calls, and let the handler answer."""
        params: Mapping[str, str] = scope["path_params"]
        with closing(AnswerShare(self._services.room)) as share, ExitStack() as until_sent:
            try:
                made = await self._answered(scope, receive, send, share, until_sent)
                await share.hold(len(made.body) if made else 0)
            except Gone:
                return
            except Exception as error:
                problem = error if isinstance(error, Refused) else as_refused(error)
                if problem is None:
                    raise
                named = {f"{name}Name": value for name, value in params.items()}
                made = refused(problem, self._operation.name, named)
            if made is not None:
                await answer(send, made)

    async def _answered(
        self,
        scope: Any,
        receive: Receive,
        send: Send,
        share: AnswerShare,
        until_sent: ExitStack,
    ) -> GatewayAnswer | None:
        services, operation = self._services, self._operation
        params: Mapping[str, str] = scope["path_params"]
        headers = headers_of(scope)
        most = services.settings.max_body_bytes
        require_length(headers, most)
        shown = shown_by(scope, headers)
        origin = origin_of(scope, headers, self._proxies)
        access = services.access
        # Before the body is read: nobody fills the memory without a key.
        caller = await access.caller(
            shown, params["account"], origin.address, is_safe=origin.is_safe
        )
        scope["told"] = {"account": caller.account, "key": caller.principal.key_id}
        services.uses.count(caller.principal.key_id)
        if caller.queue is not None and params.get("queue") != caller.queue:
            raise Refused(401)
        if not set(operation.levels).issubset(caller.levels):
            raise Refused(403, f"the key lacks a level of {operation.levels!r}")
        # It is present until its answer is sent: who takes it slowly comes no further.
        until_sent.enter_context(services.present.one(caller))
        async with self._bodies.read(receive, headers, most) as body:
            access.require_body(caller, body, origin.address)
            share.account = caller.principal.account_id
            call = HttpCall(
                services, caller, replace(shown, body=body), params, receive, send, share
            )
            return await operation.handler(call)


@dataclass(frozen=True, slots=True)
class Origin:
    """From where a request comes; safe: nobody on the way could read it."""

    address: str
    scheme: str
    is_safe: bool


def origin_of(scope: Any, headers: Mapping[str, str], proxies: Container[str]) -> Origin:
    """From where a request comes, by the word of a proxy if it is one of these.

    What another proxy has passed on comes from somewhere else, also if the proxy runs on this
    machine, and may have come without TLS.
    """
    address, scheme = (scope.get("client") or ("", 0))[0], scope["scheme"]
    if address in proxies:
        # Cut off: it is remembered, and some proxies pass on what a caller says.
        shown = headers.get("x-forwarded-for", address).rpartition(",")[2]
        address = shown.strip()[:LONGEST_ADDRESS]
        scheme = headers.get("x-forwarded-proto", scheme)
        return Origin(address, scheme, scheme == "https")
    is_own = _is_loopback(address) and not any(map(_PASSED_ON.fullmatch, headers))
    return Origin(address, scheme, scheme == "https" or is_own)


def _logged_path(scope: Any) -> str:
    """As it was sent: decoded, it may have line breaks.  A query that was encoded is cut off."""
    return _QUERY.split(scope["raw_path"][:_LOGGED].decode("latin-1"), maxsplit=1)[0]


@lru_cache(maxsize=4_096)
def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def headers_of(scope: Any) -> dict[str, str]:
    """The headers of a request; one that came twice is joined by a comma."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1").strip()
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def shown_by(scope: Any, headers: Mapping[str, str]) -> ShownRequest:
    """What a request shows, without its body."""
    return ShownRequest(
        scope["method"],
        scope["raw_path"].decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        headers,
    )


async def answer(send: Send, made: GatewayAnswer) -> None:
    """Send a whole answer."""
    headers = [(name.lower().encode(), value.encode()) for name, value in made.headers.items()]
    if made.body:
        headers.append((b"content-type", made.content_type.encode()))
    if made.status != 204:  # noqa: PLR2004 - it has no body and no length
        headers.append((b"content-length", str(len(made.body)).encode()))
    start = {"type": "http.response.start", "status": made.status, "headers": headers}
    await send(start)
    # Short ones in one part.
    head, tail = made.body[:-PART_BYTES], made.body[-PART_BYTES:]
    await send_parts(send, head)
    await send({"type": "http.response.body", "body": tail})
