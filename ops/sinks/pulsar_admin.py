"""What the relay asks Pulsar's admin interface: partitions, deduplication, the size limit."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

from ops.sinks.base import SinkMisconfigured, SinkUnavailable

#: The largest message that a broker takes by default.
DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024

_TIMEOUT_SECONDS = 15
_UNSETTLED_SECONDS = 10
_FORBIDDEN = frozenset({401, 403})
_NOT_FOUND = 404
_UNSETTLED = frozenset({"Initialized", "Recovering", "Replaying", "Removing"})


class PulsarAdmin:
    """A few calls of the admin REST interface."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._token = token

    def partitions(self, topic: str) -> int | None:
        """The number of partitions. 0 when the topic has none, None when there is no such topic."""
        found = self._get(f"{_path(topic)}/partitions", missing={"partitions": None})
        count = found["partitions"]
        return None if count is None else int(count)

    def require_namespace(self, topic: str) -> None:
        """SinkMisconfigured when there is no such tenant, or no such namespace in it."""
        tenant, namespace = _path(topic).split("/")[1:3]
        commands = f"pulsar-admin namespaces create {tenant}/{namespace}"
        if self._get(f"namespaces/{tenant}/{namespace}", missing=None, forbidden={}) is not None:
            return
        what = f"namespace {tenant}/{namespace}"
        if self._get(f"tenants/{tenant}", missing=None, forbidden={}) is None:
            commands = f"pulsar-admin tenants create {tenant}; then: {commands}"
            what = f"tenant {tenant}"
        raise SinkMisconfigured(f"the Pulsar {what} does not exist", hint=f"run: {commands}")

    def create(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic and turn deduplication on for it."""
        self._send("PUT", f"{_path(topic)}/partitions", partitions)
        self._send("POST", f"{_path(topic)}/deduplicationEnabled", True)

    def deduplicates(self, topic: str) -> bool:
        """Whether the broker drops what it has seen: by its policies and by its statistics."""
        if not self._policy(topic):
            return False
        deadline = time.monotonic() + _UNSETTLED_SECONDS
        while True:
            stats = self._get(f"{_path(topic)}-partition-0/stats", missing={})
            state = stats.get("deduplicationStatus") or "Enabled"
            if state not in _UNSETTLED or time.monotonic() > deadline:
                return bool(state == "Enabled")
            time.sleep(0.1)

    def max_message_bytes(self) -> int:
        """The broker's limit for one message.  Pulsar's default when this login may not read it."""
        answer = self._get("brokers/configuration/runtime", missing={}, forbidden={})
        return int(answer.get("maxMessageSize") or DEFAULT_MAX_MESSAGE_BYTES)

    def _policy(self, topic: str) -> bool:
        """The policy of the topic, else of the namespace, else of the broker."""
        found = self._get(f"{_path(topic)}/deduplicationEnabled?applied=true", missing=None)
        if found is None:  # policies per topic are switched off in the broker
            namespace = "/".join(_path(topic).split("/")[1:3])
            found = self._get(f"namespaces/{namespace}/deduplication", missing=None)
        if found is None:
            runtime = self._get("brokers/configuration/runtime", missing={}, forbidden={})
            found = runtime.get("brokerDeduplicationEnabled") == "true"
        return bool(found)

    def _get(self, path: str, *, missing: Any, forbidden: Any = None) -> Any:
        try:
            body = self._request("GET", path, None)
        except urllib.error.HTTPError as error:
            if error.code in _FORBIDDEN and forbidden is not None:
                return forbidden
            if error.code in {_NOT_FOUND, 405, 412}:
                return missing
            raise self._refused(path, error) from error
        try:
            return json.loads(body) if body.strip() else missing
        except ValueError as error:
            raise SinkMisconfigured(
                "what answers at admin= is not Pulsar's admin interface",
                hint="give the broker's webServicePort, 8080 by default: admin=http://host:8080",
            ) from error

    def _send(self, method: str, path: str, value: Any) -> None:
        try:
            self._request(method, path, json.dumps(value).encode())
        except urllib.error.HTTPError as error:
            raise self._refused(path, error) from error

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        request = urllib.request.Request(f"{self.url}/admin/v2/{path}", data=body, method=method)
        request.add_header("Content-Type", "application/json")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                found: bytes = answer.read()
                return found
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection; only its number is looked at
            raise
        except (OSError, http.client.HTTPException) as error:
            raise SinkUnavailable(f"Pulsar's admin interface does not answer: {error}") from error

    def _refused(
        self, path: str, error: urllib.error.HTTPError
    ) -> SinkMisconfigured | SinkUnavailable:
        text = f"Pulsar's admin interface answered {error.code} to {path}"
        if error.code in _FORBIDDEN:
            return SinkMisconfigured(
                text,
                hint="give the relay's token (PENSTOCK_PULSAR_TOKEN) the right to read topic "
                "policies",
            )
        if error.code == _NOT_FOUND:
            return SinkMisconfigured(
                text,
                hint="see that admin= is the broker's webServicePort, and that tenant and "
                "namespace are there: pulsar-admin namespaces list TENANT",
            )
        return SinkUnavailable(text)


def _path(topic: str) -> str:
    """`persistent://tenant/namespace/name` as the admin interface writes it."""
    return topic.replace("://", "/", 1)
