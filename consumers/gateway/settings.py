"""What a gateway is asked to do, checked before it starts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ops.policies import yaml_file
from penstock.database import config
from penstock.errors import ConfigurationError
from penstock.upkeep import settings as shared
from penstock.upkeep.options import (
    Effective,
    Value,
    chosen,
    from_environment,
    from_flags,
    option,
    options_of,
    unknown,
)
from penstock.upkeep.settings import ServiceSettings

PREFIX = "PENSTOCK_GATEWAY_"
FILE = f"{PREFIX}CONFIG"
#: The database by the gateway's own login, if the environment names it by another for others.
URL_VARIABLE = f"{PREFIX}DATABASE_URL"
#: The page on the admin port: what opens it, and its own login of the database.
ADMIN_KEY = f"{PREFIX}ADMIN_KEY"
ADMIN_KEY_FILE = f"{PREFIX}ADMIN_KEY_FILE"
ADMIN_URL = f"{PREFIX}ADMIN_DATABASE_URL"
#: Keys that may sign in CassieQ's way: each request of that kind is compared with all of them.
MOST_COMPATIBLE = 64
_KEY_ID = re.compile(r"[A-Za-z0-9]{16,64}", re.ASCII)
#: Variables that begin like those of options and are none; the last two are those of clients.
_NOT_OPTIONS = (
    *(FILE, URL_VARIABLE, ADMIN_KEY, ADMIN_KEY_FILE, ADMIN_URL),
    *(f"{PREFIX}URL", f"{PREFIX}KEY"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings(ServiceSettings):
    """Where the gateway listens, its limits, and the database."""

    url: str = field(repr=False)

    host: str = option("text", "127.0.0.1", "where the API listens")
    port: int = option("whole", 8080, "0: any free port; the log names it", 0, 65_535)
    hosts: str | None = option(
        "text", None, "the names by which it is called, with commas; default: any"
    )
    sqs_url: str | None = option(
        "text", None, "how addresses of queues begin for SQS clients; default: as they call"
    )
    trusted_proxies: str | None = option(
        "text", None, "addresses of proxies whose X-Forwarded-For and -Proto count, with commas"
    )
    tls_certificate: str | None = option("text", None, "a file in PEM, with the whole chain")
    tls_key: str | None = option("text", None, "its private key, a file in PEM")
    cors_origins: str | None = option(
        "text", None, "origins whose pages may call it, with commas, or *; default: none"
    )
    connections: int = option(
        "whole", 8, "connections for other calls; one account has all but one of them", 1, 256
    )
    publish_connections: int = option(
        "whole", 3, "connections for publishes; one account has all but one of them", 1, 64
    )
    max_body_bytes: int = option(
        "whole", 8_388_608, "a longer body is refused before it is read", 1_024, 268_435_456
    )
    bodies_bytes: int = option(
        "whole", 268_435_456, "all bodies of requests at a time; more get 503", 1_024, 2**40
    )
    answers_bytes: int = option(
        "whole", 268_435_456, "all long answers at a time; more wait, then 503", 8_388_608, 2**40
    )
    max_requests: int = option("whole", 4_096, "requests at a time; more get 503", 1, 1_000_000)
    account_requests: int = option(
        "whole", 2_048, "of them, of one account without a quota; more get 429", 1, 1_000_000
    )
    max_connections: int = option("whole", 10_000, "connections of callers", 1, 1_000_000)
    request_seconds: float = option(
        "number", 30.0, "a request has to arrive in so long, and an answer to be taken", 0.1, 3_600
    )
    failures_a_minute: int = option(
        "whole", 60, "failed attempts of an address, or of it on an account", 1, 1_000_000
    )
    compatible_keys: str | None = option(
        "text", None, "ids of keys that CassieQ's weak signatures count for, with commas"
    )
    request_log: str = option(
        "word", "errors", "which requests are logged", words=("all", "errors", "none")
    )
    page: str = option(
        "word", "read", "what the page on the admin port may do", words=("read", "write")
    )
    reconnects_per_second: float = shared.reconnects_per_second()

    def compatible(self) -> tuple[str, ...]:
        """Keys that may sign in CassieQ's way."""
        return tuple(each.strip() for each in (self.compatible_keys or "").split(",") if each)

    def names(self) -> frozenset[str]:
        """By which names it may be called; none: by any."""
        return _listed(self.hosts)

    def proxies(self) -> frozenset[str]:
        """Whose word counts for where a request comes from."""
        return _listed(self.trusted_proxies)

    def origins(self) -> frozenset[str]:
        """Whose pages may call it."""
        return _listed(self.cors_origins)


def gateway_options(flags: Mapping[str, object], environ: Mapping[str, str]) -> Effective:
    """The value of every option, and where it comes from."""
    options = options_of(GatewaySettings)
    path = flags.get("config") or environ.get(FILE, "").strip()
    return chosen(
        options,
        {
            "flag": from_flags(options, flags),
            "environment": from_environment(options, PREFIX, environ, *_NOT_OPTIONS),
            "file": _from_file(Path(str(path))) if path else {},
        },
    )


def gateway_url(environ: Mapping[str, str]) -> str:
    """The address of the database, by the gateway's login."""
    url = environ.get(URL_VARIABLE, "").strip()
    if url:
        config.dialect_of_url(url)
        return url
    return config.database_url(environ)


def gateway_settings(url: str, effective: Effective) -> GatewaySettings:
    """The settings; a ConfigurationError names what is wrong."""
    settings = GatewaySettings(url=url, **effective.values)
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise ConfigurationError(
            "TLS needs a certificate and its key", hint="give --tls-certificate and --tls-key"
        )
    listed = settings.compatible()
    if len(listed) > MOST_COMPATIBLE or not all(_KEY_ID.fullmatch(each) for each in listed):
        raise ConfigurationError(
            f"--compatible-keys has more than {MOST_COMPATIBLE} ids, or something that is none",
            hint="list the ids of keys, as `penstock account show` has them, not their secrets",
        )
    for path in filter(None, (settings.tls_certificate, settings.tls_key)):
        if not os.access(path, os.R_OK):
            raise ConfigurationError(f"the file {path} cannot be read", hint="check its rights")
    return settings


def shown(settings: GatewaySettings, effective: Effective) -> str:
    """The effective configuration as YAML: each value with its source, and no secret."""
    lines = [
        f"{name}: {json.dumps(value)}  # {effective.sources[name]}"
        for name, value in effective.values.items()
    ]
    return "\n".join(lines)


def _listed(text: str | None) -> frozenset[str]:
    return frozenset(each.strip().lower() for each in (text or "").split(",") if each.strip())


def _from_file(path: Path) -> dict[str, Value]:
    options = options_of(GatewaySettings)
    hint = f"give another with --config or {FILE}"
    content = yaml_file.parse(yaml_file.read(path, "the gateway's file", hint), path.name)
    if not isinstance(content or {}, dict):
        raise ConfigurationError(
            f"{path.name} is not a table", hint="write one `option: value` a line"
        )
    found = {}
    for key, value in (content or {}).items():
        if key not in options:
            raise unknown(f"{path.name}: the option", str(key), options)
        if value is not None:
            found[key] = options[key].read(value, f"{path.name}: {key}")
    return found
