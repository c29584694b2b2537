"""Who calls, and what for: credentials are found in a request and checked, limits first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from consumers.gateway.answers import Refused
from consumers.gateway.credentials import signed_requests, signed_urls, sigv4
from consumers.gateway.credentials.nonces import Nonces
from consumers.gateway.credentials.shown import TOKEN, BadCredentials, Shown, is_same
from consumers.gateway.pool import Principal
from penstock.accounts import FoundKey, MasterKeys
from penstock.errors import ConfigurationError

#: So long a process believes what it has read of a key.  The database is asked about it again in
#: each transaction, so a revoked key ends at once.
KEY_SECONDS = 10.0
_MOST_KEYS = 10_000
_MOST_ADDRESSES = 10_000

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Caller:
    """An account, and what its key lets it do; ``queue`` None: all its queues."""

    account: str
    principal: Principal
    levels: str
    queue: str | None


class Signed(Protocol):
    """A signature that only the secret of a key can confirm."""

    @property
    def key_id(self) -> str:
        """The key that made it, as the request says."""

    def is_by(self, secret: str) -> bool:
        """Whether the holder of this secret made it."""


class Keys:
    """Keys of accounts, each read once in a while."""

    def __init__(self, read: Callable[[str], Awaitable[FoundKey | None]], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, FoundKey | None]] = OrderedDict()

    async def find(self, key_id: str) -> FoundKey | None:
        """A key by its id; None when there is none that is good now."""
        now = self._clock()
        until, key = self._known.get(key_id, (now, None))
        if until <= now:
            key = await self._read(key_id)
            self._known[key_id] = (now + KEY_SECONDS, key)
            self._known.move_to_end(key_id)
            if len(self._known) > _MOST_KEYS:
                self._known.popitem(last=False)
        return key if key is not None and key.is_good else None


class Failures:
    """Failed attempts, by address and by account: each may make so many a minute."""

    def __init__(self, a_minute: int, clock: Clock) -> None:
        self._a_minute = a_minute
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def require_few(self, *names: str) -> None:
        """Refused when one of these has failed too often in this minute."""
        now = self._clock()
        for name in names:
            begun, count = self._seen.get(name, (now, 0))
            if count >= self._a_minute and now - begun < 60:  # noqa: PLR2004 - a minute
                left = max(1, int(60 - (now - begun)))
                raise Refused(429, "too many failed attempts", {"Retry-After": str(left)})

    def note(self, *names: str) -> None:
        """One more failure of these."""
        now = self._clock()
        for name in names:
            begun, count = self._seen.get(name, (now, 0))
            is_old = now - begun >= 60  # noqa: PLR2004 - a minute
            self._seen[name] = (now, 1) if is_old else (begun, count + 1)
            self._seen.move_to_end(name)
            if len(self._seen) > _MOST_ADDRESSES:
                self._seen.popitem(last=False)


class Access:
    """Finds out who calls."""

    def __init__(
        self,
        keys: Keys,
        masters: MasterKeys,
        *,
        failures_a_minute: int,
        clock: Clock = time.time,
    ) -> None:
        self._keys = keys
        self._masters = masters
        self._clock = clock
        self._nonces = Nonces(signed_requests.NONCE_SECONDS)
        self._failures = Failures(failures_a_minute, clock)

    async def caller(self, shown: Shown, account: str, address: str, *, is_safe: bool) -> Caller:
        """Who calls this account.  Refused: 401 for anything that is not right, 429 too often.

        ``is_safe`` says that nobody on the way can read the request.
        """
        # By address first: whoever guesses at many accounts is stopped by that.
        names = (f"address {address}", f"account {account} {address}")
        self._failures.require_few(*names)
        try:
            return await self._caller(shown, account, is_safe=is_safe)
        except BadCredentials as error:
            self._failures.note(*names)
            raise Refused(401, str(error)) from None

    async def aws_caller(self, shown: Shown, address: str) -> Caller:
        """The same for a call of SQS: the key says which account it is."""
        name = f"address {address}"
        self._failures.require_few(name)
        try:
            return _caller_of(await self._signer(sigv4.read(shown, self._clock()), None))
        except BadCredentials as error:
            self._failures.note(name)
            raise Refused(403, str(error)) from None

    async def _caller(self, shown: Shown, account: str, *, is_safe: bool) -> Caller:
        now = self._clock()
        scheme, _, secret = shown.header("authorization").partition(" ")
        if scheme.lower() == "key":
            if not is_safe:
                raise BadCredentials("a key was sent without TLS")
            key = await self._signer(_shown_key(secret.strip()), account)
        elif scheme:
            raise BadCredentials("the scheme of Authorization is not known")
        elif signed_requests.is_signed(shown):
            signed = signed_requests.read(shown, shown.header("host").lower(), now)
            key = await self._signer(signed, account)
            if not self._nonces.take(signed.key_id, signed.nonce, now):
                raise BadCredentials("the nonce was shown before")
        elif signed_urls.is_signed(shown):
            url = signed_urls.read(shown, account, now)
            return _caller_of(await self._signer(url, account), url)
        else:
            raise BadCredentials("there are no credentials")
        return _caller_of(key)

    async def _signer(self, signed: Signed, account: str | None) -> tuple[str, FoundKey]:
        key = await self._keys.find(signed.key_id)
        # Without a key it takes as long as with one: the secret of another is computed.
        account_id, version = (key.account_id, key.version) if key else ("", 1)
        try:
            master = key.master if key else self._masters.newest
            secret = self._masters.secret(master, account_id, signed.key_id, version)
        except ConfigurationError as error:
            raise BadCredentials(error.message) from None
        if not signed.is_by(secret) or key is None or account not in {None, key.account}:
            raise BadCredentials("the key, the signature or the account is wrong")
        return signed.key_id, key


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


def _caller_of(signer: tuple[str, FoundKey], url: signed_urls.SignedUrl | None = None) -> Caller:
    """Both the key and a signed address may limit what the caller does."""
    key_id, key = signer
    levels, queue = key.levels, key.queue
    if url is not None:
        levels = "".join(each for each in key.levels if each in url.levels)
        if queue is not None and url.queue not in {None, queue}:
            raise BadCredentials("the key is for another queue")
        queue = queue or url.queue
    return Caller(key.account, Principal(key.account_id, key_id), levels, queue)
