"""Several endpoints of one etcd: a request goes to the next one where the present one is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from penstock.database.config import redact
from penstock.errors import ConfigurationError

DEFAULT_PORT = 2379
_PROTOCOLS = {"etcd": "http", "etcds": "https"}
_HINT = "write etcd://host:2379, or etcd://one:2379,two:2379; without user and password"
_SERVER_ERROR = 500


def endpoints_of(url: str) -> list[str]:
    """The addresses of `etcd://host:port,host:port`; a port that is left out is 2379."""
    protocol = _PROTOCOLS.get(urlsplit(url).scheme)
    places = urlsplit(url).netloc.split(",")
    try:
        found = [urlsplit(f"//{place}") for place in places]
        addresses = [
            f"{protocol}://{each.netloc if each.port else f'{each.netloc}:{DEFAULT_PORT}'}"
            for each in found
            if each.hostname and "@" not in each.netloc
        ]
    except ValueError:  # a port that is no number
        addresses = []
    if protocol is None or len(addresses) < len(places):
        raise ConfigurationError(f"{redact(url)!r} is not an address of etcd", hint=_HINT)
    return addresses


class Endpoints:
    """What etcd3gw needs of a session of requests, over several endpoints.

    etcd3gw writes ``base_url`` into each URL.  A request is sent once: to another endpoint only
    where no connection could be made, so nothing has reached the server.  After any other failure
    the caller is told, and the next request goes to the next endpoint.
    """

    def __init__(self, session: Any, base_url: str, addresses: list[str]) -> None:
        self._session = session
        self._base_url = base_url
        self._addresses = addresses
        self._present = 0

    def get(self, url: str, **options: Any) -> Any:
        """As the session's own."""
        return self._asked(self._session.get, url, options)

    def post(self, url: str, **options: Any) -> Any:
        """As the session's own."""
        return self._asked(self._session.post, url, options)

    def close(self) -> None:
        """End its connections."""
        self._session.close()

    def _asked(self, ask: Callable[..., Any], url: str, options: dict[str, Any]) -> Any:
        path = url.removeprefix(self._base_url)
        *others, last = self._in_turn()
        for address in others:
            try:
                return self._answered(ask(address + path, **options))
            except Exception as error:
                self._next()
                if not _was_never_sent(error):
                    raise
        try:
            return self._answered(ask(last + path, **options))
        except Exception:
            self._next()
            raise

    def _in_turn(self) -> Iterator[str]:
        return iter(self._addresses[self._present :] + self._addresses[: self._present])

    def _answered(self, response: Any) -> Any:
        """A member without a leader answers, and cannot help: the next request asks another."""
        if response.status_code >= _SERVER_ERROR:
            self._next()
        return response

    def _next(self) -> None:
        self._present = (self._present + 1) % len(self._addresses)


def _was_never_sent(error: Exception) -> bool:
    """Whether no connection could be made."""
    from requests.exceptions import ConnectionError, ConnectTimeout
    from urllib3.exceptions import NewConnectionError

    if isinstance(error, ConnectTimeout):
        return True
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(error, ConnectionError) and isinstance(reason, NewConnectionError)
