"""Messages show only the host, the port and the name of a database's address."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given, settings, strategies as st

from consumers.settings import Settings
from penstock import database
from penstock.cli import main
from penstock.database import address, config
from penstock.database.async_connections import connect_async
from penstock.errors import ConfigurationError, DatabaseUnavailable, PenstockError
from penstock.upkeep.workers import SequencerWorker, SweepWorker
from tests.kit.proof import proves

SECRET = "s3cret"
SCHEMES = ("postgresql", "postgres", "postgresql+psycopg", "mysql", "mariadb", "mysql+pymysql")
#: Nothing listens there.
NOWHERE = "127.0.0.1:1"
PARTS = st.text(st.sampled_from("@:/#?%&=[] ,;'\"\\aZ09ä🚰\n"), max_size=8)
SECRETS = st.builds(lambda before, after: f"{before}{SECRET}{after}", PARTS, PARTS)


def attempts(url: str) -> list[Callable[[], object]]:
    """Every way in which this package connects."""
    return [
        lambda: database.connect(url),
        lambda: asyncio.run(connect_async(url, application_name="test", seconds=1)),
    ]


def told(error: BaseException) -> str:
    """All that a log may hold of an error."""
    hint = getattr(error, "hint", "")
    return "".join([str(error), repr(error), hint, *traceback.format_exception(error)])


def refused(url: str) -> list[PenstockError]:
    """The typed errors of all attempts; nothing of the secret is in what they say."""
    errors = []
    for attempt in attempts(url):
        with pytest.raises(PenstockError) as caught:
            attempt()
        assert SECRET not in told(caught.value)
        assert SECRET not in config.redact(url)
        errors.append(caught.value)
    return errors


@proves("no secret is told")
@settings(max_examples=20, deadline=None)
@given(scheme=st.sampled_from(SCHEMES), secret=SECRETS)
def test_no_password_is_told_however_it_is_written(scheme: str, secret: str) -> None:
    """Guard: address.read; libpq and urlsplit would look for a host that is its end."""
    for error in refused(f"{scheme}://ann:{secret}@{NOWHERE}/bank"):
        assert isinstance(error, DatabaseUnavailable | ConfigurationError)
        if isinstance(error, ConfigurationError):
            assert "%40 for @" in (error.hint or "")
            assert "p%40ss%2F1" in (error.hint or "")


@settings(max_examples=8, deadline=None)
@given(scheme=st.sampled_from(SCHEMES), secret=SECRETS)
def test_an_escaped_password_connects_and_is_not_told(scheme: str, secret: str) -> None:
    for url in (
        f"{scheme}://ann:{quote(secret, safe='')}@{NOWHERE}/bank",
        f"{scheme}://{quote(secret, safe='')}@{NOWHERE}/bank",
    ):
        for error in refused(url):
            assert isinstance(error, DatabaseUnavailable)
            assert NOWHERE in str(error) and "bank" in str(error)


@proves("no secret is told")
@settings(max_examples=8, deadline=None)
@given(secret=SECRETS, name=st.sampled_from(["password", "sslpassword", "user", "passwort", "x"]))
def test_no_option_is_told(secret: str, name: str) -> None:
    for scheme in ("postgresql", "mysql"):
        for value in (secret, quote(secret, safe="")):
            refused(f"{scheme}://ann@{NOWHERE}/bank?connect_timeout=2&{name}={value}")
            refused(f"{scheme}://ann@{NOWHERE}/bank?{value}")


@settings(max_examples=20, deadline=None)
@given(secret=SECRETS)
def test_keywords_tell_nothing_either(secret: str) -> None:
    for password in (secret, "'" + secret.replace("\\", r"\\").replace("'", r"\'") + "'"):
        refused(f"host=127.0.0.1 port=1 user=ann password={password} dbname=bank")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:pa@{SECRET}@host/x",
        f"postgresql://u:pa/{SECRET}@host/x",
        f"postgresql://u:{SECRET}",
        f"postgresql://u:{SECRET}/x",
        f"postgresql://{SECRET} x@h:1/x",
        f"mysql://u:pa@{SECRET}@host/x",
        f"mysql://u:p@h:{SECRET}/x",
        f"mysql://u:p@h:99999/{SECRET}?a",
        f"{SECRET}://u:p@h/x",
        f"postgresql:{SECRET}://u:p@h/x",
        f"u:{SECRET}@host/x",
        f"//u:{SECRET}@host/x",
        f"mysql://u@h/x?{SECRET}=1",
    ],
)
def test_what_cannot_be_read_is_an_error_that_says_how_to_write_it(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way: Python and the command."""
    with pytest.raises(ConfigurationError) as caught:
        database.connect(url)
    assert caught.value.hint
    assert SECRET not in told(caught.value)
    monkeypatch.setenv(config.URL_VARIABLE, url)
    for command in (["doctor"], ["migrate", "--check"]):
        assert main.run(command) != 0
        said = capsys.readouterr()
        assert SECRET not in said.out + said.err


@proves("no secret is told", guard="an address is taken apart before a driver sees it")
def test_without_the_look_a_part_of_the_password_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: libpq takes the address as it is."""
    monkeypatch.setattr(address, "read", lambda url: None)
    with pytest.raises(DatabaseUnavailable) as caught:
        database.connect(f"postgresql://ann:pa@{SECRET}@{NOWHERE}/bank")
    assert SECRET in str(caught.value)


def test_the_parts_of_a_well_written_address() -> None:
    found = address.read("postgresql://ann:p%40ss@a.example:1,[::1]:2/bank?sslmode=require")
    assert (found.user, found.password) == ("ann", "p%40ss")
    assert found.place == "postgresql://a.example:1,[::1]:2/bank"
    assert found.query == "sslmode=require"
    # Unambiguous, and taken as libpq takes it.
    assert address.read("postgresql://ann:a:b#c?d@h/bank").password == "a:b#c?d"
    assert address.read("postgresql://h/bank").user is None


def test_what_a_server_says_loses_user_and_password_only() -> None:
    url = f"postgresql://ann:{SECRET}@host/bank?options=-csearch_path%3D{SECRET}2"
    said = address.without_secrets(
        url, f'FATAL: user "ann" of database "bank" on host: {SECRET}, {SECRET}2\nsecond line'
    )
    assert said == 'FATAL: user "***" of database "bank" on host: ***, ***'


def test_a_repr_tells_no_address() -> None:
    url = f"postgresql://ann:{SECRET}@host/bank"
    held = [SequencerWorker(url), SweepWorker(url), address.read(url)]
    assert SECRET not in repr(held) and "ann" not in repr(held)
    assert not Settings.__dataclass_fields__["url"].repr
