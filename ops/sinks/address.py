"""A sink by its address, as a command, a daemon or Dagster is configured with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from ops.sinks.base import Sink
from ops.sinks.jsonl import JsonlSink
from penstock.errors import ConfigurationError

_FORMS = (
    "write jsonl:///directory or "
    "pulsar://host:6650/tenant/namespace?admin=http://host:8080[&batching=false][&create=true]"
)
TOKEN_VARIABLE = "PENSTOCK_PULSAR_TOKEN"

_FLAGS = {"true": True, "false": False}


def open_sink(address: str, *, token: str | None = None) -> Sink:
    """The sink of an address: `jsonl:DIRECTORY` or `pulsar://HOST:PORT/TENANT/NAMESPACE?admin=URL`.

    A relative directory is written `jsonl:directory`.  The token is Pulsar's; it is no part of
    the address, so that addresses can be shown.
    """
    parts = urlsplit(address)
    if parts.scheme == "jsonl" and not parts.netloc and parts.path:
        return JsonlSink(unquote(parts.path))
    if parts.scheme in {"pulsar", "pulsar+ssl"} and parts.netloc:
        return _pulsar(parts, token)
    raise ConfigurationError(f"there is no sink {parts.scheme or address}", hint=_FORMS)


def configured_sink(address: str, environ: Mapping[str, str] | None = None) -> Sink:
    """The sink of an address, with the token that the environment has for it."""
    environ = os.environ if environ is None else environ
    return open_sink(address, token=environ.get(TOKEN_VARIABLE) or None)


def _pulsar(parts: SplitResult, token: str | None) -> Sink:
    try:
        from ops.sinks.pulsar import PulsarSink
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "the Pulsar client is not installed", hint="run: pip install pulsar-client"
        ) from error
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    admin = options.pop("admin", None)
    unknown = options.keys() - {"batching", "create"}
    if admin is None or unknown or set(options.values()) - _FLAGS.keys():
        wrong = ", ".join(sorted(unknown)) or "its options"
        raise ConfigurationError(f"the Pulsar address cannot be read: {wrong}", hint=_FORMS)
    namespace = parts.path.strip("/") or "public/default"
    return PulsarSink(
        f"{parts.scheme}://{parts.netloc}",
        admin_url=admin,
        topic=f"persistent://{namespace}/{{topic}}",
        batching=_FLAGS[options.get("batching", "true")],
        create=_FLAGS[options.get("create", "false")],
        token=token,
    )
