"""Master keys, and the secrets that are derived from them.

The database has no secret of a key.  Whoever has a master key computes it again.  So a copy of the
database lets nobody act for an account.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from pathlib import Path

from penstock.errors import ConfigurationError

VARIABLE = "PENSTOCK_MASTER_KEYS"
FILE_VARIABLE = "PENSTOCK_MASTER_KEYS_FILE"
_SHORTEST = 32
_HOW = (
    f"set {FILE_VARIABLE} to a file, or {VARIABLE}: one key a line, of at least {_SHORTEST} random "
    "characters (openssl rand -hex 32), the newest first"
)


class MasterKeys:
    """The master keys of an installation: the newest derives new secrets, the others old ones."""

    def __init__(self, keys: Iterable[str]) -> None:
        given = [each.encode() for each in keys]
        if not given:
            raise ConfigurationError("there is no master key", hint=_HOW)
        if any(len(each) < _SHORTEST for each in given):
            raise ConfigurationError("a master key is too short", hint=_HOW)
        self._keys = {_name(each): each for each in given}
        #: The name of the key from which new secrets are derived.
        self.newest = _name(given[0])

    @classmethod
    def from_environment(cls) -> MasterKeys:
        """Those that the environment gives, or names a file of."""
        file = os.environ.get(FILE_VARIABLE)
        if not file:
            return cls(os.environ.get(VARIABLE, "").split())
        try:
            return cls(Path(file).read_text("utf-8").split())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"the file that {FILE_VARIABLE} names cannot be read: {type(error).__name__}",
                hint=_HOW,
            ) from None

    def __repr__(self) -> str:
        """Names, never keys."""
        return f"MasterKeys({', '.join(self._keys)})"

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def secret(self, name: str, account_id: str, key_id: str, version: int) -> str:
        """The secret of a key that was made with the master key of this name."""
        if name not in self._keys:
            raise ConfigurationError(f"the master key {name} is not here", hint=_HOW)
        parts = (b"penstock.key", account_id.encode(), key_id.encode(), str(version).encode())
        # Each with its length before it: no two lists of parts make the same text.
        text = b"".join(len(each).to_bytes(4, "big") + each for each in parts)
        digest = hmac.new(self._keys[name], text, hashlib.sha256).digest()
        return urlsafe_b64encode(digest).decode().rstrip("=")

    def is_secret(self, shown: str, name: str, account_id: str, key_id: str, version: int) -> bool:
        """Whether a caller has shown the secret.  It takes as long for any wrong one."""
        right = self.secret(name, account_id, key_id, version)
        return hmac.compare_digest(shown.encode(), right.encode())


def _name(key: bytes) -> str:
    """By it a row says from which master key a secret comes; it tells nothing of the key."""
    return hmac.new(key, b"penstock.master", hashlib.sha256).hexdigest()[:16]
