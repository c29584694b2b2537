"""What all clients of one Kafka sink share: their settings, and what their errors mean."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException

from ops.sinks.base import SinkMisconfigured, SinkUnavailable
from ops.sinks.kafka_settings import KafkaSettings

#: How long a single answer of a broker may take.
ANSWER_SECONDS = 15
_TOKEN_SECONDS = 3600
_POLL_SECONDS = 0.01
_SLICE_SECONDS = 0.25

T = TypeVar("T")

#: Of a call that nobody ends.
NEVER = threading.Event()

_LOGIN = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError._SSL,
    }
)
_RIGHTS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_NO_TRANSACTIONS = frozenset(
    {
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.UNSUPPORTED_VERSION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        KafkaError._NOT_IMPLEMENTED,
    }
)
_FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)
_GONE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


class KafkaClient:
    """Makes the settings of clients, and keeps what they report beside their calls."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._logger = settings.logger()
        self._login_failed: KafkaError | None = None

    def config(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of one client: its own over those of the address and the file."""
        found = dict(self.settings.client)
        token = found.pop("token", None)
        found.pop("compression.type", None)  # the producer asks for it
        if token is not None:
            found["oauth_cb"] = _oauth(token)
        return found | {
            "bootstrap.servers": self.settings.servers,
            "error_cb": self._noted,
            "logger": self._logger,
            # A broker that comes back is found at once, and not after 100 ms to 10 s.
            "reconnect.backoff.ms": 5,
            "reconnect.backoff.max.ms": 1000,
            "retry.backoff.ms": 5,
            "topic.metadata.refresh.fast.interval.ms": 5,
            **own,
        }

    @contextmanager
    def translated(self, doing: str, client: Any = None) -> Iterator[None]:
        """Whatever the client raises in the block becomes an error of sinks, without secrets."""
        self._login_failed = None
        try:
            yield
        except (KafkaException, SystemError) as error:
            # A fatal error in the middle of reports comes out as a SystemError because of it.
            found = error.__cause__ if isinstance(error, SystemError) else error
            if not isinstance(found, KafkaException):
                raise
            with suppress(KafkaException, SystemError):
                if client is not None:
                    client.poll(0)  # what it reports beside its calls
            raise self.error(found.args[0], doing) from None

    def answer(self, asked: Future[T], client: Any, ended: threading.Event = NEVER) -> T:
        """The answer to a call of the admin interface.  A login that fails ends the wait."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while not asked.done() and self._login_failed is None and time.monotonic() < deadline:
            require_wanted(ended)
            client.poll(_POLL_SECONDS)
        if not asked.done():
            raise KafkaException(self._login_failed or KafkaError(KafkaError._TIMED_OUT))
        return asked.result()

    def connect(self, client: Any, topic: str, ended: threading.Event) -> None:
        """Wait for a connection.  A login that fails ends the wait."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            require_wanted(ended)
            try:
                client.list_topics(topic, _SLICE_SECONDS)
            except KafkaException:
                client.poll(0)
                if self._login_failed is not None or time.monotonic() > deadline:
                    raise
            else:
                return

    def error(self, error: KafkaError, doing: str) -> SinkUnavailable | SinkMisconfigured:
        """An error of the client as one of sinks."""
        # A failed login is told beside the calls, which wait for a broker until their time ends.
        waited = error.code() in {KafkaError._TIMED_OUT, KafkaError._TRANSPORT}
        if waited and self._login_failed is not None:
            error = self._login_failed
        code = error.code()
        said = self.settings.without_secrets(error.str())
        text = f"Kafka, {doing}: {error.name()} ({said})"
        if code in _FENCED:
            return SinkUnavailable(f"{text}: another relay has taken the partition over")
        for codes, hint in _HINTS:
            if code in codes:
                return SinkMisconfigured(text, hint=hint)
        return SinkUnavailable(text)

    def _noted(self, error: KafkaError) -> None:
        if error.code() in _LOGIN:
            self._login_failed = error


def require_wanted(ended: threading.Event) -> None:
    """SinkUnavailable when the relay wants no answer any more."""
    if ended.is_set():
        raise SinkUnavailable("the relay has ended the call to Kafka")


_LOGIN_HINT = (
    "check PENSTOCK_KAFKA_USERNAME and PENSTOCK_KAFKA_PASSWORD, or PENSTOCK_KAFKA_TOKEN, which may "
    "have expired; mechanism=; and kafka+ssl:// where the brokers want TLS"
)
_RIGHTS_HINT = (
    "the login needs READ, WRITE, DESCRIBE and DESCRIBE_CONFIGS on the topic, and WRITE and "
    "DESCRIBE on transactional ids that begin with penstock/"
)
_NO_TRANSACTIONS_HINT = (
    "these brokers have no transactions: add exactly=false to the address, and events are sent at "
    "least once"
)
_AGE_HINT = (
    "the topic refuses events of such an age: look at its message.timestamp.before.max.ms and "
    "message.timestamp.after.max.ms"
)
_HINTS: tuple[tuple[frozenset[int], str], ...] = (
    (_LOGIN, _LOGIN_HINT),
    (_RIGHTS, _RIGHTS_HINT),
    (_NO_TRANSACTIONS, _NO_TRANSACTIONS_HINT),
    (_GONE, "make the topic, or add create=true to the address"),
    (frozenset({KafkaError.INVALID_TIMESTAMP}), _AGE_HINT),
    (frozenset({KafkaError._INVALID_ARG}), "look at the file of settings=, and at the address"),
)


def _oauth(token: str) -> Callable[[str], tuple[str, float]]:
    return lambda _: (token, time.time() + _TOKEN_SECONDS)
