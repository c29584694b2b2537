"""A client of the HTTP gateway, with the standard library alone.

    from penstock.http import GatewayClient

    with GatewayClient("https://events.example.com/shop", key="KEY_ID.SECRET") as gateway:
        gateway.publish("orders/eu", b"...", key="7")

:class:`AsyncGatewayClient` has the same calls for asyncio.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.http.address import GatewayAddress as GatewayAddress
    from penstock.http.async_client import AsyncGatewayClient as AsyncGatewayClient
    from penstock.http.client import GatewayClient as GatewayClient
    from penstock.http.heard import HeardEvent as HeardEvent

_HOMES = {
    "AsyncGatewayClient": "async_client",
    "GatewayAddress": "address",
    "GatewayClient": "client",
    "HeardEvent": "heard",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """A client is loaded when it is used: every command asks where a gateway is, few call one."""
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock.http' has no attribute {name!r}")
    return getattr(import_module(f"penstock.http.{_HOMES[name]}"), name)
