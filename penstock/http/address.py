"""Where a gateway is, for which account, and by which key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from penstock.errors import ConfigurationError

URL_VARIABLE = "PENSTOCK_GATEWAY_URL"
KEY_VARIABLE = "PENSTOCK_GATEWAY_KEY"
_API = "/api/v1/accounts/"
_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}\.[A-Za-z0-9_-]{1,256}", re.ASCII)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_EXAMPLE = "https://events.example.com/shop"


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """An account at a gateway.  The key is in no repr and in no error."""

    host: str
    port: int
    is_secure: bool
    account: str
    #: How all paths begin.
    base: str
    key: str = field(repr=False)

    @classmethod
    def of(cls, url: str | None = None, key: str | None = None) -> GatewayAddress:
        """The address ``https://HOST/ACCOUNT`` with a key, or what the environment has.

        ``https://HOST/api/v1/accounts/ACCOUNT`` is the same, also below another path of a proxy.
        """
        url = url or os.environ.get(URL_VARIABLE, "").strip()
        key = key or os.environ.get(KEY_VARIABLE, "").strip()
        if not url:
            raise ConfigurationError(
                "no gateway is named", hint=f"set {URL_VARIABLE}, for example {_EXAMPLE}"
            )
        if not _KEY.fullmatch(key):
            raise ConfigurationError(
                "the gateway's key is missing or malformed",
                hint=f"set {KEY_VARIABLE} to KEY_ID.SECRET, as `penstock account key create` says",
            )
        return cls._read(url, key)

    @classmethod
    def _read(cls, url: str, key: str) -> GatewayAddress:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            parts, host, port = urlsplit(""), "", None
        # What is in the address is shown by logs of proxies: the key is a header.
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigurationError(
                "the gateway's address has more than host, port and account",
                hint=f"write it like {_EXAMPLE}, and the key in {KEY_VARIABLE}",
            )
        if not host or parts.scheme not in {"http", "https"}:
            raise ConfigurationError(
                "the gateway's address cannot be read", hint=f"write it like {_EXAMPLE}"
            )
        before, found, account = parts.path.rstrip("/").rpartition(_API)
        if not found:
            before, _, account = parts.path.rstrip("/").rpartition("/")
        if not account or "/" in account:
            raise ConfigurationError(
                "the gateway's address names no account", hint=f"write it like {_EXAMPLE}"
            )
        is_secure = parts.scheme == "https"
        if not is_secure and host not in _LOOPBACK:
            raise ConfigurationError(
                "a key is sent over TLS only, but the gateway's address begins with http://",
                hint="use https://; http:// is for the same machine",
            )
        account = unquote(account)
        base = f"{before}{_API}{quote(account, safe='')}"
        return cls(host, port or (443 if is_secure else 80), is_secure, account, base, key)

    @property
    def name(self) -> str:
        """Host and port, as a header and an error have them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port in {80, 443} else f"{host}:{self.port}"

    def headers(self, more: Mapping[str, str]) -> dict[str, str]:
        """The headers of a request."""
        return {"Host": self.name, "Authorization": f"Key {self.key}", **more}
