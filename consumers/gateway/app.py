"""The application: the table of operations as routes, behind the front."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.routing import Route, Router

from consumers.gateway import cassieq, openapi, queues, streams, subscriptions, topics
from consumers.gateway.access import Access
from consumers.gateway.answers import as_json
from consumers.gateway.bodies import Bodies
from consumers.gateway.calls import Receive, Send, Services
from consumers.gateway.front import Endpoint, Front, Tally, answer
from consumers.gateway.groups import ConsumerGroups
from consumers.gateway.pool import Pool
from consumers.gateway.present import Present
from consumers.gateway.publishing import Coalescer
from consumers.gateway.room import AnswerRoom
from consumers.gateway.settings import GatewaySettings
from consumers.gateway.sqs.door import SqsDoor, is_for_sqs
from consumers.gateway.tails import Tails
from consumers.gateway.uses import Uses
from penstock.accounts import FoundKey, MasterKeys, find_key

#: In the order in which a request is compared with them: the hot ones first.
OPERATIONS = (
    *cassieq.OPERATIONS,
    *topics.OPERATIONS,
    *queues.OPERATIONS,
    *streams.OPERATIONS,
    *subscriptions.OPERATIONS,
)
#: Calls that may wait for the database, for each of its connections.
_WAITING_EACH = 256
_KEY_CONNECTIONS = 2
#: Where a path has `topics`, `queues` or `subscriptions`: /api/v1/accounts/{account}/queues.
_KIND_AT = 5
#: So long a publish with a dedup key, or with strict, waits for the one before it.
ORDERED_WAIT_MS = 100


class Gateway:
    """The application with what it has opened; close it at the end."""

    def __init__(
        self, settings: GatewaySettings, masters: MasterKeys, clock: Callable[[], float] = time.time
    ) -> None:
        calls, publishes = settings.connections, settings.publish_connections
        self._pool = Pool(settings.url, calls, calls * _WAITING_EACH)
        self._publish_pool = Pool(settings.url, publishes, publishes * 4, name="publish")
        # A call may wait for somebody else's transaction. Keys are looked up beside all calls, so
        # that nobody waits with it who only wants to be known.
        self._key_pool = Pool(settings.url, _KEY_CONNECTIONS, calls * _WAITING_EACH, name="keys")
        self._ordered_pool = Pool(
            settings.url,
            publishes,
            publishes * _WAITING_EACH,
            name="ordered",
            lock_timeout_ms=ORDERED_WAIT_MS,
        )
        access = Access(
            self._found,
            masters,
            failures_a_minute=settings.failures_a_minute,
            compatible=settings.compatible(),
            clock=clock,
        )
        room = AnswerRoom(settings.answers_bytes)
        self.services = Services(
            settings,
            access,
            self._pool,
            self._ordered_pool,
            Coalescer(self._publish_pool, publishes),
            Tails(self._pool, room),
            ConsumerGroups(self._pool),
            Present(settings.account_requests),
            room,
            Uses(self._key_pool),
        )
        self.tally = Tally()
        self.app = Front(_Doors(self.services), settings, self.tally)

    def close(self) -> None:
        """Close the connections, after the calls that run."""
        for pool in (self._publish_pool, self._ordered_pool, self._key_pool, self._pool):
            pool.close()

    async def _found(self, key_id: str) -> FoundKey | None:
        return await self._key_pool.run(None, lambda connection: find_key(connection, key_id))


class _Doors:
    """One port for SQS clients and for all others."""

    def __init__(self, services: Services) -> None:
        bodies = Bodies(services.settings.bodies_bytes)
        self._sqs = SqsDoor(services, bodies)
        routes = _routes(services, bodies)
        self._others = Router(routes, redirect_slashes=False)
        self._kinds = {
            kind: Router(
                [each for each in routes if _kind(each.path) == kind], redirect_slashes=False
            )
            for kind in set(map(_kind, (each.path for each in routes)))
        }

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if is_for_sqs(scope):
            await self._sqs(scope, receive, send)
        else:
            router = self._kinds.get(_kind(scope["path"]), self._others)
            await router(scope, receive, send)


def _kind(path: str) -> str:
    """What comes after the account: a request is compared with the routes of its kind alone."""
    parts = path.split("/", _KIND_AT + 1)
    return parts[_KIND_AT] if len(parts) > _KIND_AT else ""


def _routes(services: Services, bodies: Bodies) -> list[Route]:
    found = [
        Route(each.whole_path, Endpoint(services, each, bodies), methods=[each.method])
        for each in OPERATIONS
    ]
    found.append(Route("/openapi.json", _OpenPage(openapi.described(OPERATIONS)), methods=["GET"]))
    for route in found:
        # Starlette adds HEAD to each GET.  But some of these take a message.
        route.methods = (route.methods or set()) - {"HEAD"}
    return found


class _OpenPage:
    """A page that everybody may see."""

    def __init__(self, value: Any) -> None:
        self._made = as_json(200, value)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await answer(send, self._made)
