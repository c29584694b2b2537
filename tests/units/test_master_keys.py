"""Secrets are derived from master keys, and from nothing that the database alone has."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from penstock.accounts import MasterKeys, masters
from penstock.errors import ConfigurationError
from tests.kit.proof import proves

_PARTS = (("a", "bc", 1), ("ab", "c", 1), ("ab", "c", 11), ("a", "bc1", 1))
NEW, OLD = "n" * 32, "o" * 40


@proves("secrets of keys")
def test_a_secret_is_a_golden_function_of_the_master_key() -> None:
    """Written out a second time: another version of Penstock must derive the same."""
    keys = MasterKeys([NEW])
    parts = [b"penstock.key", b"acc", b"key", b"1"]
    text = b"".join(len(each).to_bytes(4, "big") + each for each in parts)
    digest = hmac.new(NEW.encode(), text, hashlib.sha256).digest()
    secret = urlsafe_b64encode(digest).decode().rstrip("=")
    assert keys.secret(keys.newest, "acc", "key", 1) == secret
    assert keys.is_secret(secret, keys.newest, "acc", "key", 1)
    for wrong in ("", secret[:-1], secret + "x", "é"):
        assert not keys.is_secret(wrong, keys.newest, "acc", "key", 1)


@proves("secrets of keys", guard="the lengths of the parts")
def test_no_two_keys_have_one_secret() -> None:
    """Guard: the length before each part.  Without it, parts that run into each other agree."""
    keys = MasterKeys([NEW, OLD])
    made = {
        keys.secret(name, account, key, version)
        for name in (keys.newest, MasterKeys([OLD]).newest)
        for account, key, version in (
            ("a", "bc", 1),
            ("ab", "c", 1),
            ("ab", "c", 11),
            ("a", "bc1", 1),
        )
    }
    assert len(made) == 8


def test_an_old_master_key_is_kept_while_a_key_uses_it() -> None:
    before = MasterKeys([OLD])
    after = MasterKeys([NEW, OLD])
    assert after.newest != before.newest
    assert before.newest in after
    assert after.secret(before.newest, "a", "k", 1) == before.secret(before.newest, "a", "k", 1)
    with pytest.raises(ConfigurationError, match=before.newest):
        MasterKeys([NEW]).secret(before.newest, "a", "k", 1)


def test_they_come_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(masters.FILE_VARIABLE, raising=False)
    monkeypatch.setenv(masters.VARIABLE, f"{NEW} {OLD}")
    assert MasterKeys.from_environment().newest == MasterKeys([NEW]).newest
    file = tmp_path / "keys"
    file.write_text(f"{OLD}\n{NEW}\n")
    monkeypatch.setenv(masters.FILE_VARIABLE, str(file))
    assert MasterKeys.from_environment().newest == MasterKeys([OLD]).newest
    file.write_text("")
    with pytest.raises(ConfigurationError, match="no master key"):
        MasterKeys.from_environment()
    monkeypatch.setenv(masters.FILE_VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        MasterKeys.from_environment()


def test_a_master_key_is_long_and_never_shown() -> None:
    with pytest.raises(ConfigurationError) as refused:
        MasterKeys(["short and secret"])
    assert "secret" not in str(refused.value)
    assert NEW not in repr(MasterKeys([NEW]))
