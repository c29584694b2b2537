"""Who calls, and what for: credentials are found in a request and checked, limits first."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from consumers.gateway.answers import Refused
from consumers.gateway.credentials import signed_requests, signed_urls, sigv4, weak_signatures
from consumers.gateway.credentials.nonces import Nonces, TooManyNonces
from consumers.gateway.credentials.shown import TOKEN, BadCredentials, ShownRequest, is_same
from consumers.gateway.pool import Principal
from penstock.accounts import FoundKey, MasterKeys
from penstock.errors import ConfigurationError

#: So long a process believes what it has read of a key.  The database is asked about it again in
#: each transaction, so a revoked key ends at once.
KEY_SECONDS = 10.0
_MOST_KEYS = 10_000
_MOST_ADDRESSES = 10_000
_MINUTE = 60.0

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class AccountCaller:
    """An account, and what its key lets it do; ``queue`` None: all its queues.

    ``signed`` has to be over the body too, which comes after the caller is known.
    """

    account: str
    principal: Principal
    levels: str
    queue: str | None
    signed: signed_requests.SignedRequest | None = None
    #: How many requests the account may have at a time; None: as many as is usual.
    max_requests: int | None = None


class Signed(Protocol):
    """A signature that only the secret of a key can confirm."""

    @property
    def key_id(self) -> str:
        """The key that made it, as the request says."""

    def is_by(self, secret: str) -> bool:
        """Whether the holder of this secret made it."""


class Failures:
    """Failed attempts: each address may make so many a minute."""

    def __init__(self, a_minute: int, clock: Clock) -> None:
        self._a_minute = a_minute
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._asking: Counter[str] = Counter()

    def require_few(self, name: str) -> None:
        """Refused when this one has failed too often in this minute."""
        now = self._clock()
        begun, count = self._seen.get(name, (now, 0))
        if now - begun >= _MINUTE:
            count = 0
        if count + self._asking[name] >= self._a_minute:
            left = max(1, int(_MINUTE - (now - begun)))
            raise Refused(429, "too many failed attempts", {"Retry-After": str(left)})

    @contextmanager
    def asking(self, name: str) -> Iterator[None]:
        """While the database is asked for this one; what may fail counts until it has not."""
        self.require_few(name)
        self._asking[name] += 1
        try:
            yield
        finally:
            self._asking[name] -= 1
            if not self._asking[name]:
                del self._asking[name]

    def note(self, name: str) -> None:
        """One more failure of this one."""
        now = self._clock()
        begun, count = self._seen.get(name, (now, 0))
        self._seen[name] = (now, 1) if now - begun >= _MINUTE else (begun, count + 1)
        self._seen.move_to_end(name)
        if len(self._seen) > _MOST_ADDRESSES:
            self._seen.popitem(last=False)


class Keys:
    """Keys of accounts, each read once in a while."""

    def __init__(
        self,
        read: Callable[[str], Awaitable[FoundKey | None]],
        failures: Failures,
        clock: Clock,
    ) -> None:
        self._read = read
        self._failures = failures
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, FoundKey | None]] = OrderedDict()
        self._reading: dict[str, asyncio.Future[FoundKey | None]] = {}

    async def find(self, key_id: str, name: str) -> FoundKey | None:
        """A key by its id; None when there is none that is good now.

        Only what is not known to be a key counts as an attempt of ``name``.  So whoever shares an
        address with one that fails goes on with the keys that are in use.
        """
        until, key = self._known.get(key_id, (0.0, None))
        if until <= self._clock():
            reading = self._reading.get(key_id)
            if reading is not None:
                key = await asyncio.shield(reading)
            elif key is not None:
                key = await self._asked(key_id)
            else:
                with self._failures.asking(name):
                    key = await self._asked(key_id)
        return key if key is not None and key.is_good else None

    async def _asked(self, key_id: str) -> FoundKey | None:
        """Ask the database, once for all who want to know at the same time."""
        reading = self._reading[key_id] = asyncio.ensure_future(self._read(key_id))
        try:
            key = await reading
        finally:
            del self._reading[key_id]
        self._known[key_id] = (self._clock() + KEY_SECONDS, key)
        self._known.move_to_end(key_id)
        if len(self._known) > _MOST_KEYS:
            self._known.popitem(last=False)
        return key


class Access:
    """Finds out who calls."""

    def __init__(
        self,
        read: Callable[[str], Awaitable[FoundKey | None]],
        masters: MasterKeys,
        *,
        failures_a_minute: int,
        compatible: Collection[str] = (),
        clock: Clock = time.time,
    ) -> None:
        self._compatible = tuple(compatible)
        self._failures = Failures(failures_a_minute, clock)
        self._keys = Keys(read, self._failures, clock)
        self._masters = masters
        self._clock = clock
        self._nonces = Nonces()

    async def caller(
        self, shown: ShownRequest, account: str, address: str, *, is_safe: bool
    ) -> AccountCaller:
        """Who calls this account.  Refused: 401 for anything that is not right, 429 too often.

        ``is_safe`` says that nobody on the way can read the request.  The body is not needed: it
        is read when it is known who sends it, and `require_body` looks at it then.
        """
        name = _counted(address)
        with self._noted(name, 401):
            return await self._caller(shown, account, name, is_safe=is_safe)

    async def aws_signer(self, shown: ShownRequest, address: str) -> AwsSigner:
        """Who says to have signed a call of SQS: a key that there is.  The body comes after it."""
        name = _counted(address)
        with self._noted(name, 401):
            signed = sigv4.read(shown, self._clock())
            key = await self._keys.find(signed.key_id, name)
            if key is None:
                raise BadCredentials("there is no such key")
            return AwsSigner(signed, key)

    def aws_caller(self, signer: AwsSigner, body: bytes, address: str) -> AccountCaller:
        """Who has signed it with this body."""
        signed, key = signer.signed, signer.key
        with self._noted(_counted(address), 401):
            if not signed.is_by(self._secret(key, signed.key_id), body):
                raise BadCredentials("the signature is not good, or not over this body")
            return _caller_of((signed.key_id, key))

    def require_body(self, caller: AccountCaller, body: bytes, address: str) -> None:
        """Refused when the caller has signed another body."""
        with self._noted(_counted(address), 401):
            if caller.signed is not None and not caller.signed.is_over(body):
                raise BadCredentials("the body is not the one that was signed")

    @contextmanager
    def _noted(self, name: str, status: int) -> Iterator[None]:
        try:
            yield
        except BadCredentials as error:
            self._failures.require_few(name)
            self._failures.note(name)
            raise Refused(status, str(error)) from None

    async def _caller(
        self, shown: ShownRequest, account: str, name: str, *, is_safe: bool
    ) -> AccountCaller:
        now = self._clock()
        if self._compatible:
            weak = weak_signatures.read(shown, account, now, is_safe=is_safe)
            if weak is not None:
                return await self._weak_caller(weak, account, name)
        scheme, _, secret = shown.header("authorization").partition(" ")
        if scheme.lower() == "key":
            if not is_safe:
                raise BadCredentials("a key was sent without TLS")
            return _caller_of(await self._signer(_shown_key(secret.strip()), account, name))
        if scheme:
            raise BadCredentials("the scheme of Authorization is not known")
        if signed_requests.is_signed(shown):
            signed = signed_requests.read(shown, shown.header("host").lower(), now)
            key = await self._signer(signed, account, name)
            self._take_nonce(signed, now)
            return replace(_caller_of(key), signed=signed)
        if signed_urls.is_signed(shown):
            url = signed_urls.read(shown, account, now)
            return _caller_of(await self._signer(url, account, name), url)
        raise BadCredentials("there are no credentials")

    async def _weak_caller(
        self, weak: weak_signatures.WeakSignature, account: str, name: str
    ) -> AccountCaller:
        """Whose key of those that are listed has made it: it names none.

        All are compared, so it takes as long for any account.
        """
        found: tuple[str, FoundKey] | None = None
        for key_id in self._compatible:
            key = await self._keys.find(key_id, name)
            is_by = weak.is_by(self._secret(key, key_id))
            if is_by and key is not None and key.account == account:
                found = key_id, key
        if found is None:
            raise BadCredentials("no key that may sign so has made it")
        return _caller_of(found, weak)

    def _take_nonce(self, signed: signed_requests.SignedRequest, now: float) -> None:
        until = signed.created + signed_requests.LIFETIME_SECONDS
        try:
            if not self._nonces.take(signed.key_id, signed.nonce, until, now):
                raise BadCredentials("the nonce was shown before")
        except TooManyNonces:
            busy = "too many signed requests of this key in five minutes"
            raise Refused(429, busy, {"Retry-After": "30"}) from None

    async def _signer(self, signed: Signed, account: str | None, name: str) -> tuple[str, FoundKey]:
        key = await self._keys.find(signed.key_id, name)
        # Without a key it takes as long as with one: the secret of another is computed.
        secret = self._secret(key, signed.key_id)
        if not signed.is_by(secret) or key is None or account not in {None, key.account}:
            raise BadCredentials("the key, the signature or the account is wrong")
        return signed.key_id, key

    def _secret(self, key: FoundKey | None, key_id: str) -> str:
        account_id, version = (key.account_id, key.version) if key else ("", 1)
        try:
            master = key.master if key else self._masters.newest
            return self._masters.secret(master, account_id, key_id, version)
        except ConfigurationError as error:
            raise BadCredentials(error.message) from None


@lru_cache(maxsize=4_096)
def _counted(address: str) -> str:
    """By which name the failures of an address count: of IPv6, everybody has a whole network."""
    try:
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    except ValueError:
        return address[:64]


@dataclass(frozen=True, slots=True)
class AwsSigner:
    """A signature of a call of SQS, and the key that it names."""

    signed: sigv4.AwsSignature
    key: FoundKey


@dataclass(frozen=True, slots=True)
class _ShownKey:
    """A key and its secret, as a caller shows both."""

    key_id: str
    secret: str

    def is_by(self, secret: str) -> bool:
        return is_same(self.secret.encode(), secret.encode())


def _shown_key(text: str) -> _ShownKey:
    key_id, _, secret = text.partition(".")
    if not TOKEN.fullmatch(key_id) or not TOKEN.fullmatch(secret):
        raise BadCredentials("the key is malformed")
    return _ShownKey(key_id, secret)


def _caller_of(
    signer: tuple[str, FoundKey],
    url: signed_urls.SignedUrl | weak_signatures.WeakSignature | None = None,
) -> AccountCaller:
    """Both the key and a signed address may limit what the caller does."""
    key_id, key = signer
    levels, queue = key.levels, key.queue
    if url is not None:
        if url.levels is not None:
            levels = "".join(each for each in key.levels if each in url.levels)
        if queue is not None and url.queue not in {None, queue}:
            raise BadCredentials("the key is for another queue")
        queue = queue or url.queue
    principal = Principal(key.account_id, key_id)
    return AccountCaller(key.account, principal, levels, queue, max_requests=key.max_requests)
