"""Opens a sink by its address, as commands, the daemon and Dagster are configured with it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from ops.sinks.base import Sink
from ops.sinks.jsonl import JsonlSink
from penstock.errors import ConfigurationError, MissingExtra

_FORMS = (
    "write jsonl:///directory or "
    "pulsar://host:6650/tenant/namespace?admin=http://host:8080[&batching=false][&create=true]"
)
TOKEN_VARIABLE = "PENSTOCK_PULSAR_TOKEN"

_FLAGS = {"true": True, "false": False}
#: An option of such a name, also one of the admin interface's own address, would hold a secret.
_SECRET = re.compile(r"(?i)[?&;][^=&;]*(?:passw|secret|token|key|credential|auth)[^=&;]*=")


def open_sink(address: str, *, token: str | None = None, beside: str = "") -> Sink:
    """The sink of an address: `jsonl:DIRECTORY` or `pulsar://HOST:PORT/TENANT/NAMESPACE?admin=URL`.

    A relative directory is written `jsonl:directory`. The token is for Pulsar. It is not part of
    the address, so addresses can be shown. With ``beside`` the sink has places of its own, in which
    nothing of others is: a folder of this name, or Pulsar topics whose names end with it.
    """
    require_no_secret(address, "the sink's address")
    parts = urlsplit(address)
    if parts.scheme == "jsonl" and not parts.netloc and parts.path:
        return JsonlSink(Path(unquote(parts.path), beside))
    if parts.scheme in {"pulsar", "pulsar+ssl"} and parts.netloc:
        return _pulsar(parts, token, beside)
    raise ConfigurationError(
        f"there is no sink {parts.scheme}://"
        if parts.scheme
        else "the sink's address has no scheme",
        hint=_FORMS,
    )


def require_no_secret(address: str, where: str) -> None:
    """ConfigurationError when a login or a secret stands in an address: pages and logs show it.

    The error does not repeat the address.
    """
    if address.startswith("jsonl:"):
        return
    told = unquote(address)
    if "@" in address or "@" in told or _SECRET.search(told):
        raise ConfigurationError(
            f"{where} has a login or a secret in it, and addresses are shown",
            hint=f"leave it out; the token for Pulsar comes from the environment: {TOKEN_VARIABLE}",
        )


def configured_sink(
    address: str, environ: Mapping[str, str] | None = None, *, beside: str = ""
) -> Sink:
    """The sink of an address, with the token from the environment."""
    environ = os.environ if environ is None else environ
    return open_sink(address, token=environ.get(TOKEN_VARIABLE) or None, beside=beside)


def absolute_address(address: str) -> str:
    """The address, checked, that leads to the same sink from every folder."""
    open_sink(address).close()
    parts = urlsplit(address)
    if parts.scheme != "jsonl":
        return address
    return f"jsonl:{quote(str(Path(unquote(parts.path)).resolve()))}"


def _pulsar(parts: SplitResult, token: str | None, beside: str) -> Sink:
    try:
        from ops.sinks.pulsar import PulsarSink
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"pulsar", "_pulsar"}:
            raise
        raise MissingExtra.of("pulsar", "pulsar-client") from error
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    admin = options.pop("admin", None)
    unknown = options.keys() - {"batching", "create"}
    wrong = _wrong(admin, sorted(unknown), sorted(set(options.values()) - _FLAGS.keys()))
    if wrong or admin is None:
        raise ConfigurationError(f"the Pulsar address {wrong}", hint=_FORMS)
    namespace = parts.path.strip("/") or "public/default"
    return PulsarSink(
        f"{parts.scheme}://{parts.netloc}",
        admin_url=admin,
        topic=f"persistent://{namespace}/{{topic}}" + (f".{beside}" if beside else ""),
        batching=_FLAGS[options.get("batching", "true")],
        create=_FLAGS[options.get("create", "false")],
        token=token,
    )


def _wrong(admin: str | None, unknown: list[str], values: list[str]) -> str:
    """What is wrong with the options of a Pulsar address; empty when nothing is."""
    if admin is None:
        return "names no admin interface: add admin= (in a shell, put the whole address in quotes)"
    if urlsplit(admin).scheme not in {"http", "https"} or not urlsplit(admin).netloc:
        return "has an admin= that is no http:// or https:// address"
    if unknown:
        return f"has options that are not known: {', '.join(unknown)}"
    return "has an option that is neither true nor false" if values else ""
