"""How a relay reaches Kafka: the address, the login of the environment, a file of client settings.

Nothing secret is part of the address, which pages and logs show. What the client itself logs goes
to our logger, with every secret taken out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

from ops.sinks.options import flag, options_of
from penstock.errors import ConfigurationError

USERNAME_VARIABLE = "PENSTOCK_KAFKA_USERNAME"
PASSWORD_VARIABLE = "PENSTOCK_KAFKA_PASSWORD"
TOKEN_VARIABLE = "PENSTOCK_KAFKA_TOKEN"

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
#: What makes it exact is not up to a file.
_OURS = frozenset(
    {
        *("bootstrap.servers", "transactional.id", "transaction.timeout.ms", "acks", "retries"),
        *("enable.idempotence", "isolation.level", "message.timeout.ms", "delivery.timeout.ms"),
        *("message.max.bytes", "request.required.acks", "message.send.max.retries"),
        *("enable.gapless.guarantee", "enable.partition.eof", "group.id", "auto.offset.reset"),
        *("enable.auto.commit", "check.crcs", "metadata.broker.list"),
    }
)
_SECRET_NAME = re.compile(r"passw|secret|token|key|credential|jaas", re.IGNORECASE)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SHORTEST_SECRET = 3

log = logging.getLogger("ops.sinks.kafka")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where the brokers are and how to log in; what a relay may ask for in the address."""

    servers: str
    prefix: str = ""
    create: bool = False
    exactly: bool = True
    resend: bool = False
    #: An event without a payload is a record without a value.
    tombstones: bool = False
    #: The client's settings. They hold secrets, so they are not shown.
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, parts: SplitResult, environ: Mapping[str, str], beside: str = "") -> KafkaSettings:
        """From an address. ConfigurationError says what to write."""
        options = options_of(
            parts, ("create", "exactly", "mechanism", "resend", "settings"), "Kafka"
        )
        rules = options_of(parts._replace(query=parts.fragment), ("tombstones",), "Kafka")
        prefix = ".".join(each for each in (parts.path.strip("/"), beside) if each)
        if prefix and not _TOPIC.fullmatch(prefix):
            raise _wrong("has a prefix that Kafka does not take: use letters, digits, . _ and -")
        client = _of_file(options["settings"]) if "settings" in options else {}
        tls = parts.scheme == "kafka+ssl"
        return cls(
            parts.netloc,
            prefix,
            create=flag(options, "create", "Kafka", default=False),
            exactly=flag(options, "exactly", "Kafka", default=True),
            resend=flag(options, "resend", "Kafka", default=False),
            tombstones=flag(rules, "tombstones", "Kafka", default=False),
            client=_login(options.get("mechanism"), environ, tls=tls) | client,
        )

    def topic(self, topic: str) -> str:
        """The Kafka topic of a Penstock topic: its address with `/` as `.`, after the prefix."""
        name = topic.replace("/", ".")
        return f"{self.prefix}.{name}" if self.prefix else name

    @property
    def compression(self) -> str:
        """How records are compressed, unless the file says something else."""
        return str(self.client.get("compression.type", "lz4"))

    def secrets(self) -> list[str]:
        """What must not be shown."""
        return [
            value
            for name, value in self.client.items()
            if isinstance(value, str) and _SECRET_NAME.search(name) and value
        ]

    def without_secrets(self, text: str) -> str:
        """A text of the client, for an error or a log."""
        for secret in self.secrets():
            if len(secret) >= _SHORTEST_SECRET:
                text = text.replace(secret, "***")
        return text

    def logger(self) -> logging.Logger:
        """Where the client logs."""
        found = logging.Logger("ops.sinks.kafka.client", logging.WARNING)
        found.parent = log
        found.addFilter(self._filtered)
        return found

    def _filtered(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self.without_secrets(record.getMessage()), ()
        return True


def valid_topic(name: str) -> bool:
    """Whether Kafka takes this name."""
    return _TOPIC.fullmatch(name) is not None and name not in {".", ".."}


def _login(mechanism: str | None, environ: Mapping[str, str], *, tls: bool) -> dict[str, Any]:
    username, password = environ.get(USERNAME_VARIABLE), environ.get(PASSWORD_VARIABLE)
    token = environ.get(TOKEN_VARIABLE)
    if mechanism is not None and mechanism not in _MECHANISMS:
        raise _wrong(f"has a mechanism= that is not one of {', '.join(_MECHANISMS)}")
    if bool(username) != bool(password):
        raise ConfigurationError(
            "a login for Kafka needs both a name and a password",
            hint=f"set {USERNAME_VARIABLE} and {PASSWORD_VARIABLE}",
        )
    if token and username:
        raise ConfigurationError(
            "there are two logins for Kafka, a token and a name with a password",
            hint=f"set {TOKEN_VARIABLE}, or {USERNAME_VARIABLE} and {PASSWORD_VARIABLE}",
        )
    if not token and not username:
        return {"security.protocol": "SSL"} if tls else {}
    found: dict[str, Any] = {"security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT"}
    if token:
        return found | {"sasl.mechanism": "OAUTHBEARER", "token": token}
    return found | {
        "sasl.mechanism": mechanism or "PLAIN",
        "sasl.username": username,
        "sasl.password": password,
    }


def _of_file(name: str) -> dict[str, str]:
    """The lines `NAME=VALUE` of a file, as Kafka's own tools read them."""
    try:
        lines = Path(name).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the file of Kafka settings {name} cannot be read ({type(error).__name__})",
            hint="name a file of lines NAME=VALUE that the relay's user may read",
        ) from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(f"line {number} of {name} is no line NAME=VALUE")
        if key.strip() in _OURS:
            raise ConfigurationError(
                f"line {number} of {name} sets {key.strip()}, which the relay sets itself",
                hint="leave it out: with another value events could be lost or doubled",
            )
        found[key.strip()] = value.strip()
    return found


def _wrong(what: str) -> ConfigurationError:
    return ConfigurationError(f"the Kafka address {what}")
