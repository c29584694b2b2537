"""A client of the HTTP gateway, with the standard library alone.

    from penstock.http import GatewayClient

    with GatewayClient("https://events.example.com/shop", key="KEY_ID.SECRET") as gateway:
        gateway.publish("orders/eu", b"...", key="7")

:class:`AsyncGatewayClient` has the same calls for asyncio.
"""

from __future__ import annotations

from penstock.http.address import GatewayAddress as GatewayAddress
from penstock.http.async_client import AsyncGatewayClient as AsyncGatewayClient
from penstock.http.client import GatewayClient as GatewayClient
from penstock.http.heard import HeardEvent as HeardEvent
