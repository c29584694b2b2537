"""A registry in Redis: each step is one Lua script, lease times are key expiries.

It needs one primary that keeps every write that it has confirmed: ``appendfsync always``, and no
failover to a replica that lags.  A Redis that forgets a write may give out a ``lease_epoch`` twice,
and no client can notice that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.database.config import redact
from penstock.errors import ConfigurationError, CoordinationUnavailable, MissingExtra
from penstock.leases.coordination.registry import (
    DIGITS,
    Assignment,
    Holding,
    LeaseRegistry,
    Snapshot,
    duplicate,
    require_position,
    stale,
    unknown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

TIMEOUT_SECONDS = 5.0

# Keys of one subscription: :alive:<consumer> expires with the lease and holds "session weight";
# :consumers is the set of their names; :leases has "epoch" or "epoch session consumer" of each
# partition; :positions has texts of one length, because a Lua number is exact to 2^53 only.
_COMMON = """
local base = KEYS[1]
local function session_of(consumer)
  local alive = redis.call('GET', base .. ':alive:' .. consumer)
  return alive and string.match(alive, '^%S+')
end
local function is_held(lease)
  local session, holder = string.match(lease, '^%d+ (%S+) (.+)$')
  return session ~= nil and session_of(holder) == session
end
"""

INITIALIZE = """
local made = 0
for i = 2, #ARGV, 2 do
  if redis.call('HSETNX', base .. ':positions', ARGV[i], ARGV[i + 1]) == 1 then
    redis.call('HSET', base .. ':leases', ARGV[i], ARGV[1])
    made = made + 1
  end
end
return made
"""

REGISTER = """
local consumer, session, weight, milliseconds = unpack(ARGV)
if session_of(consumer) then return 0 end
redis.call('SET', base .. ':alive:' .. consumer, session .. ' ' .. weight, 'PX', milliseconds)
redis.call('SADD', base .. ':consumers', consumer)
return 1
"""

DEREGISTER = """
local consumer, session = unpack(ARGV)
if session_of(consumer) == session then
  redis.call('DEL', base .. ':alive:' .. consumer)
  redis.call('SREM', base .. ':consumers', consumer)
end
local leases = redis.call('HGETALL', base .. ':leases')
for i = 1, #leases, 2 do
  local epoch, holder = string.match(leases[i + 1], '^(%d+) (%S+)')
  if holder == session then redis.call('HSET', base .. ':leases', leases[i], epoch) end
end
return 1
"""

RENEW = """
local consumer, session, milliseconds = unpack(ARGV)
if session_of(consumer) ~= session then return 0 end
return redis.call('PEXPIRE', base .. ':alive:' .. consumer, milliseconds)
"""

CLAIM = """
local consumer, session, partition, epoch, next_epoch = unpack(ARGV)
if session_of(consumer) ~= session then return 'unknown' end
local lease = redis.call('HGET', base .. ':leases', partition)
if not lease then return 'missing' end
if string.match(lease, '^%d+') ~= epoch or is_held(lease) then return false end
redis.call('HSET', base .. ':leases', partition, next_epoch .. ' ' .. session .. ' ' .. consumer)
return redis.call('HGET', base .. ':positions', partition)
"""

RELEASE = """
local partition, held, epoch = unpack(ARGV)
if redis.call('HGET', base .. ':leases', partition) ~= held then return 0 end
redis.call('HSET', base .. ':leases', partition, epoch)
return 1
"""

UPDATE_POSITION = """
local partition, held, position = unpack(ARGV)
local lease = redis.call('HGET', base .. ':leases', partition)
if lease ~= held then return 0 end
if not is_held(lease) then return 0 end
if redis.call('HGET', base .. ':positions', partition) >= position then return 0 end
redis.call('HSET', base .. ':positions', partition, position)
return 1
"""

LEAD = """
local consumer, session = unpack(ARGV)
if session_of(consumer) ~= session then return 'unknown' end
local leader = redis.call('GET', base .. ':leader') or '0'
local term, present = string.match(leader, '^(%d+) ?(%S*)')
if present == session then return tonumber(term) end
if is_held(leader) then return false end
redis.call('SET', base .. ':leader', string.format('%d %s %s', term + 1, session, consumer))
return term + 1
"""

ASSIGN = """
local leader, plan = unpack(ARGV)
if redis.call('GET', base .. ':leader') ~= leader then return 0 end
if not is_held(leader) then return 0 end
redis.call('SET', base .. ':assignment', plan)
return 1
"""

SNAPSHOT = """
local consumers = {}
for _, consumer in ipairs(redis.call('SMEMBERS', base .. ':consumers')) do
  local alive = redis.call('GET', base .. ':alive:' .. consumer)
  if alive then
    consumers[#consumers + 1] = {consumer, alive}
  else
    redis.call('SREM', base .. ':consumers', consumer)
  end
end
return {consumers, redis.call('HGETALL', base .. ':leases'),
        redis.call('HGETALL', base .. ':positions'), redis.call('GET', base .. ':assignment')}
"""


class RedisRegistry(LeaseRegistry):
    """The registry of one subscription in the Redis at ``url`` (``redis://`` or ``rediss://``)."""

    def __init__(
        self,
        url: str,
        subscription: str,
        *,
        lease_seconds: float = 10.0,
        prefix: str = "penstock",
    ) -> None:
        super().__init__()
        self._where_it_is = redact(url)
        self._milliseconds = round(lease_seconds * 1000)
        # The braces keep all keys of a subscription on one node of a cluster.
        self._base = f"{{{prefix}:{subscription}}}"
        self._redis = _client(url)
        with self._reachable():
            self._redis.ping()

    def initialize(self, positions: Mapping[int, int], *, lease_epoch: int = 0) -> int:
        starts = [
            text
            for partition_id, position in positions.items()
            for text in (str(partition_id), _text(position))
        ]
        return int(self._run(INITIALIZE, str(lease_epoch), *starts))

    def _register(self, consumer: str, session: str, weight: float) -> None:
        if not self._run(REGISTER, consumer, session, repr(weight), self._milliseconds):
            raise duplicate(consumer)

    def deregister(self, consumer: str) -> None:
        session = self._sessions.pop(consumer, None)
        if session is not None:
            self._run(DEREGISTER, consumer, session)

    def renew(self, consumer: str) -> None:
        if not self._run(RENEW, consumer, self._session(consumer), self._milliseconds):
            raise unknown(consumer)

    def claim(self, partition_id: int, consumer: str, lease_epoch: int) -> Holding | None:
        session = self._session(consumer)
        epochs = (str(lease_epoch), str(lease_epoch + 1))
        said = self._run(CLAIM, consumer, session, str(partition_id), *epochs)
        if said == "unknown":
            raise unknown(consumer)
        if said == "missing":
            self._known(self.snapshot(), partition_id)
        if said is None:
            return None
        return Holding(partition_id, consumer, True, lease_epoch + 1, int(said))

    def release(self, partition_id: int, consumer: str, lease_epoch: int) -> bool:
        held = self._held(consumer, lease_epoch)
        return bool(self._run(RELEASE, str(partition_id), held, str(lease_epoch)))

    def update_position(
        self, partition_id: int, consumer: str, position: int, lease_epoch: int
    ) -> None:
        held = self._held(consumer, lease_epoch)
        if not self._run(UPDATE_POSITION, str(partition_id), held, _text(position)):
            raise self._refused(partition_id, consumer, position, lease_epoch)

    def lead(self, consumer: str) -> int | None:
        said = self._run(LEAD, consumer, self._session(consumer))
        if said == "unknown":
            raise unknown(consumer)
        return None if said is None else int(said)

    def assign(self, consumer: str, term: int, holders: Mapping[int, str]) -> None:
        plan = json.dumps({"term": term, "holders": dict(holders)})
        if not self._run(ASSIGN, self._held(consumer, term), plan):
            raise stale(f"term {term} of leader {consumer!r} is over")

    def snapshot(self) -> Snapshot:
        consumers, leases, positions, plan = self._run(SNAPSHOT)
        alive = {name: text.split(" ") for name, text in consumers}
        sessions = {name: session for name, (session, _) in alive.items()}
        position_of = dict(zip(positions[::2], positions[1::2], strict=True))
        holdings = (
            _holding(partition, lease, position_of[partition], sessions)
            for partition, lease in zip(leases[::2], leases[1::2], strict=True)
        )
        return Snapshot(
            {name: float(alive[name][1]) for name in sorted(alive)},
            {each.partition_id: each for each in sorted(holdings, key=lambda h: h.partition_id)},
            assignment(plan),
        )

    def close(self) -> None:
        self._redis.close()

    def _held(self, consumer: str, epoch: int) -> str:
        return f"{epoch} {self._sessions.get(consumer, '-')} {consumer}"

    def _run(self, script: str, *arguments: str | int) -> Any:
        with self._reachable():
            return self._redis.eval(_COMMON + script, 1, self._base, *map(str, arguments))

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        from redis.exceptions import RedisError

        try:
            yield
        except RedisError as error:
            raise CoordinationUnavailable(
                f"the Redis at {self._where_it_is} does not answer: {error}",
                hint="check that it runs, and that this login may run scripts",
            ) from error


def assignment(plan: str | None) -> Assignment:
    """A leader's decision from its stored text."""
    if plan is None:
        return Assignment()
    stored = json.loads(plan)
    return Assignment(stored["term"], {int(p): who for p, who in stored["holders"].items()})


def _holding(partition: str, lease: str, position: str, sessions: Mapping[str, str]) -> Holding:
    epoch, *held = lease.split(" ", 2)
    holder = held[1] if held else None
    live = holder is not None and sessions.get(holder) == held[0]
    return Holding(int(partition), holder, live, int(epoch), int(position))


def _text(position: int) -> str:
    return f"{require_position(position):0{DIGITS}}"


def _client(url: str) -> Redis:
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise MissingExtra.of("redis", "redis") from error
    try:
        # The client must not repeat a step by itself: the second run would meet the first one's
        # changes.  The caller repeats it.
        return redis.Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise ConfigurationError(
            f"{redact(url)!r} is not an address of Redis", hint="write redis://host:6379/0"
        ) from error
