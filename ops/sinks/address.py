"""Opens a sink by its address, as commands, the daemon and Dagster are configured with it.

A sink's module reads the rest of its address itself, in its ``open_sink``. A sink of another
package is found by the entry-point group ``penstock.sinks``: the name is the address's scheme, the
value such a function.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from ops.sinks.base import Sink
from ops.sinks.routed import RoutedSink
from ops.sinks.routing import Routing, parse_routing, require_fitting
from penstock.errors import ConfigurationError, MissingExtra

GROUP = "penstock.sinks"

_EXACTLY_ONCE, _AT_LEAST_ONCE = "exactly once", "at least once"

#: Called as ``factory(parts, environ=..., beside=...)``.
Factory = Callable[..., Sink]


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    """A sink of this platform."""

    #: Imports its module, and returns the function that opens it.
    load: Callable[[], Factory]
    #: How its address is written, for hints.
    form: str
    #: The variables from which its login comes.
    login: tuple[str, ...] = ()
    #: The package that the module needs: as it is imported, and as pip installs it.
    package: str = ""
    install: str = ""
    #: How often an event is there, whatever happens to the relay.
    promise: str = _EXACTLY_ONCE

    def factory(self) -> Factory:
        """The function that opens it; MissingExtra names the package that is missing."""
        try:
            return self.load()
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0].removeprefix("_")
            if not self.package or missing != self.package:
                raise
            raise MissingExtra.of(self.package, self.install) from error


def _jsonl() -> Factory:
    from ops.sinks.jsonl import open_sink as found

    return found


def _aws() -> Factory:
    from ops.sinks.aws import open_sink as found

    return found


def _rabbitmq() -> Factory:
    from ops.sinks.rabbitmq import open_sink as found

    return found


def _webhook() -> Factory:
    from ops.sinks.webhook import open_sink as found

    return found


def _pulsar() -> Factory:
    from ops.sinks.pulsar import open_sink as found

    return found


def _kafka() -> Factory:
    from ops.sinks.kafka import open_sink as found

    return found


def _redis() -> Factory:
    from ops.sinks.redis_streams import open_sink as found

    return found


def _penstock() -> Factory:
    from ops.sinks.penstock_log import open_sink as found

    return found


def _nats() -> Factory:
    from ops.sinks.nats_jetstream import open_sink as found

    return found


_AWS_LOGIN = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_SQS = _BuiltIn(_aws, "sqs://region/[account/]queue[?endpoint=URL]", _AWS_LOGIN, "boto3", "boto3")
_SNS = _BuiltIn(_aws, "sns://region/account/topic[?endpoint=URL]", _AWS_LOGIN, "boto3", "boto3")
_RABBITMQ = _BuiltIn(
    _rabbitmq,
    "amqp://host:5672/vhost?queue=NAME[&create=true] or ?exchange=NAME[&route={topic}]",
    ("PENSTOCK_RABBITMQ_USERNAME", "PENSTOCK_RABBITMQ_PASSWORD"),
    "pika",
    "pika",
)
_WEBHOOK = _BuiltIn(
    _webhook,
    "webhook+https://host/path[#batch=100&concurrency=8&login=NAME]",
    ("PENSTOCK_WEBHOOK_SECRET", "PENSTOCK_WEBHOOK_TOKEN"),
    promise=_AT_LEAST_ONCE,
)
_PULSAR = _BuiltIn(
    _pulsar,
    "pulsar://host:6650/tenant/namespace?admin=http://host:8080[&batching=false][&create=true]",
    ("PENSTOCK_PULSAR_TOKEN",),
    "pulsar",
    "pulsar-client",
)
_KAFKA = _BuiltIn(
    _kafka,
    "kafka://host:9092[,host:9092]/prefix[?create=true][&exactly=false][&mechanism=SCRAM-SHA-512]"
    "[&settings=FILE]",
    ("PENSTOCK_KAFKA_USERNAME", "PENSTOCK_KAFKA_PASSWORD", "PENSTOCK_KAFKA_TOKEN"),
    "confluent_kafka",
    "confluent-kafka",
    f"{_EXACTLY_ONCE}, for readers of committed records",
)
_REDIS = _BuiltIn(
    _redis,
    "redis://host:6379/prefix[?db=0][&maxlen=1000000][&resend=true][&volatile=true]",
    ("PENSTOCK_REDIS_USERNAME", "PENSTOCK_REDIS_PASSWORD"),
    "redis",
    "redis",
)
_NATS = _BuiltIn(
    _nats,
    "nats://host:4222/stream[?prefix=stream][&create=true][&replicas=3][&resend=true]"
    "[&volatile=true]",
    (
        "PENSTOCK_NATS_USERNAME",
        "PENSTOCK_NATS_PASSWORD",
        "PENSTOCK_NATS_TOKEN",
        "PENSTOCK_NATS_CREDENTIALS_FILE",
    ),
    "nats",
    "nats-py",
)
_PENSTOCK = _BuiltIn(
    _penstock,
    "penstock+postgresql://host:5432/database[?prefix=namespace][&create=true][&resend=true]",
    ("PENSTOCK_SINK_USERNAME", "PENSTOCK_SINK_PASSWORD"),
)
#: The sinks by the schemes of their addresses.
BUILT_IN: dict[str, _BuiltIn] = {
    "jsonl": _BuiltIn(_jsonl, "jsonl:///directory"),
    "pulsar": _PULSAR,
    "pulsar+ssl": _PULSAR,
    "kafka": _KAFKA,
    "kafka+ssl": _KAFKA,
    "amqp": _RABBITMQ,
    "amqps": _RABBITMQ,
    "sns": _SNS,
    "sqs": _SQS,
    "webhook+http": _WEBHOOK,
    "webhook+https": _WEBHOOK,
    "redis": _REDIS,
    "rediss": _REDIS,
    "nats": _NATS,
    "nats+tls": _NATS,
    "penstock+postgresql": _PENSTOCK,
    "penstock+mysql": _PENSTOCK,
    "penstock+mariadb": _PENSTOCK,
}

#: An option of such a name, also one of the admin interface's own address, would hold a secret.
_SECRET = re.compile(r"(?i)[?&;#][^=&;]*(?:passw|secret|token|key|credential|auth)[^=&;]*=")

#: The key's template, which is none.
_ROUTE_KEY = re.compile(r"(#(?:[^#]*&)?)key=([^&]*\{)")


def open_sink(address: str, *, environ: Mapping[str, str] | None = None, beside: str = "") -> Sink:
    """The sink of an address, such as `jsonl:DIRECTORY`.

    A login comes from ``environ``. It is not part of the address, so addresses can be shown. With
    ``beside`` the sink has places of its own, in which nothing of others is: a folder of this name,
    for example, or topics whose names end with it.
    """
    require_no_secret(address, "the sink's address")
    try:
        parts = urlsplit(address)
    except ValueError as error:  # a bracket without its other half
        raise ConfigurationError(
            "the sink's address cannot be read", hint="an IPv6 address stands in brackets"
        ) from error
    known = BUILT_IN.get(parts.scheme)
    factory = _found(parts) if known is None else known.factory()
    routing, rest = parse_routing(parts.fragment)
    require_fitting(parts.scheme, routing)
    parts = parts._replace(fragment=_own_options(parts, routing, rest))
    try:
        sink = factory(parts, environ=environ or {}, beside=beside)
        return sink if routing == Routing() else RoutedSink(sink, routing)
    except MissingExtra:
        raise
    except ConfigurationError as error:
        if known is None or error.hint:
            raise
        raise ConfigurationError(error.message, hint=f"write {known.form}") from error


def _own_options(parts: SplitResult, routing: Routing, rest: str) -> str:
    """What stands behind `#` that the sink reads itself."""
    is_webhook = parts.scheme.startswith("webhook+")
    if rest and not is_webhook and parts.scheme in BUILT_IN:
        raise ConfigurationError(
            f"behind # of the sink's address stands {rest.partition('=')[0]}, which is no rule of "
            "a relay",
            hint="there can stand envelope, to, key, type, where.NAME, header.NAME, tombstones, "
            "schemas, order, rate, rate_bytes, breaker, breaker_seconds",
        )
    own = [rest]
    if is_webhook and routing.envelope:
        own.append(f"envelope={routing.envelope}")
    if routing.tombstones and parts.scheme.startswith("kafka"):
        own.append("tombstones=true")
    return "&".join(each for each in own if each)


def require_no_secret(address: str, where: str) -> None:
    """ConfigurationError when a login or a secret stands in an address: pages and logs show it.

    The error does not repeat the address.
    """
    if address.startswith("jsonl:"):
        return
    told = _ROUTE_KEY.sub(r"\1\2", unquote(address))
    if "@" in address or "@" in told or _SECRET.search(told):
        known = BUILT_IN.get(address.partition(":")[0])
        kinds = BUILT_IN.values() if known is None else [known]
        names = sorted({name for each in kinds for name in each.login})
        raise ConfigurationError(
            f"{where} has a login or a secret in it, and addresses are shown",
            hint=f"leave it out; a login comes from the environment: {', '.join(names)}",
        )


def configured_sink(
    address: str, environ: Mapping[str, str] | None = None, *, beside: str = ""
) -> Sink:
    """The sink of an address, with the login from the environment."""
    return open_sink(address, environ=os.environ if environ is None else environ, beside=beside)


def promise_of(address: str) -> str:
    """What the sink of an address promises; "" for one of another package."""
    parts = urlsplit(address)
    known = BUILT_IN.get(parts.scheme)
    if known is None:
        return ""
    asked = parse_qs(parts.query).get("exactly", ["true"])[-1]
    return known.promise if asked == "true" else _AT_LEAST_ONCE


def absolute_address(address: str) -> str:
    """The address, checked, that leads to the same sink from every folder."""
    configured_sink(address).close()
    parts = urlsplit(address)
    if parts.scheme != "jsonl":
        return address
    rules = f"#{parts.fragment}" if parts.fragment else ""
    return f"jsonl:{quote(str(Path(unquote(parts.path)).resolve()))}{rules}"


def _found(parts: SplitResult) -> Factory:
    """What another package offers for the scheme."""
    for entry in entry_points(group=GROUP, name=parts.scheme):
        offered: Factory = entry.load()
        return offered
    forms = dict.fromkeys(each.form for each in BUILT_IN.values())
    raise ConfigurationError(
        f"there is no sink {parts.scheme}://"
        if parts.scheme
        else "the sink's address has no scheme",
        hint=f"write {' or '.join(forms)}",
    )
