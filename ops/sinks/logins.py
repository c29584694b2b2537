"""Logins of sinks: from the environment, or from files that the environment names."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from ops.sinks.base import SinkMisconfigured


def secret(environ: Mapping[str, str], name: str) -> str:
    """A secret from a variable, or from the file that the variable NAME_FILE names; else empty.

    A file is read at each call, so a new secret is used without a restart.
    """
    if environ.get(name):
        return environ[name]
    file = environ.get(f"{name}_FILE")
    if not file:
        return ""
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise SinkMisconfigured(
            f"the file that {name}_FILE names cannot be read ({type(error).__name__})",
            hint="give the relay the right to read it, or correct the variable",
        ) from error


def tls(environ: Mapping[str, str], prefix: str) -> ssl.SSLContext:
    """A context that proves the server's certificate and shows a client's, if there is one.

    PREFIX_CA_FILE names the authorities, else those of the system; PREFIX_CERTIFICATE_FILE and
    PREFIX_KEY_FILE are the client's.
    """
    certificate = environ.get(f"{prefix}_CERTIFICATE_FILE")
    try:
        context = ssl.create_default_context(cafile=environ.get(f"{prefix}_CA_FILE") or None)
        if certificate:
            context.load_cert_chain(certificate, environ.get(f"{prefix}_KEY_FILE") or None)
    except OSError as error:
        raise SinkMisconfigured(
            f"the certificates of {prefix}_CA_FILE, _CERTIFICATE_FILE and _KEY_FILE cannot be used "
            f"({error.strerror or type(error).__name__})",
            hint="each is a file in PEM form that the relay may read",
        ) from error
    return context
