"""The environment names the database, and errors name the mistakes in it."""

from __future__ import annotations

import psycopg.conninfo
import pytest
from hypothesis import given, strategies as st

from penstock.database import config
from penstock.errors import ConfigurationError

PARTS = {
    "DB_TYPE": "postgres",
    "DB_HOST": "db.example",
    "DB_PORT": "5433",
    "DB_NAME": "bank",
    "DB_USER": "teller",
    "DB_PASSWORD": "s3cret",
}

text = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30
)


def test_the_url_wins() -> None:
    environ = {**PARTS, "PENSTOCK_DATABASE_URL": "postgresql://localhost/other"}
    assert config.database_url(environ) == "postgresql://localhost/other"


def test_the_parts_make_a_url() -> None:
    assert config.database_url(PARTS) == "postgresql://teller:s3cret@db.example:5433/bank"
    assert config.database_url({"DB_NAME": "bank"}) == "postgresql://localhost:5432/bank"
    assert config.database_url({**PARTS, "DB_TYPE": "MariaDB"}).startswith("mysql://")
    assert "@[::1]:5433/" in config.database_url({**PARTS, "DB_HOST": "::1"})


@given(user=text, password=text, name=text)
def test_the_parts_arrive_at_the_driver_as_they_are(user: str, password: str, name: str) -> None:
    url = config.database_url({**PARTS, "DB_USER": user, "DB_PASSWORD": password, "DB_NAME": name})
    found = psycopg.conninfo.conninfo_to_dict(url)
    assert (found["user"], found["password"], found["dbname"]) == (user, password, name)


def test_a_socket_folder_arrives_at_the_driver() -> None:
    url = config.database_url({**PARTS, "DB_HOST": "/run/postgresql"})
    assert psycopg.conninfo.conninfo_to_dict(url)["host"] == "/run/postgresql"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"DB_TYPE": "oracle"}, "DB_TYPE 'oracle'"),
        ({"DB_NAME": ""}, "DB_NAME is not set"),
        ({"DB_PORT": "five"}, "DB_PORT"),
        ({"DB_PORT": "0"}, "DB_PORT"),
        ({"DB_PORT": "65536"}, "DB_PORT"),
        ({"DB_PORT": "-1"}, "DB_PORT"),
        ({"DB_PORT": "²"}, "DB_PORT"),
        ({"DB_USER": ""}, "DB_PASSWORD is set without DB_USER"),
        ({"PENSTOCK_DATABASE_URL": "localhost"}, "not a URL"),
        ({"PENSTOCK_DATABASE_URL": "sqlite:///file"}, "type of the database"),
    ],
)
def test_a_mistake_is_named_and_the_password_is_not(changes: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        config.database_url({**PARTS, **changes})
    assert "s3cret" not in str(caught.value)
    assert caught.value.hint


def test_no_configuration_says_what_to_set() -> None:
    assert not config.is_configured({})
    with pytest.raises(ConfigurationError, match="PENSTOCK_DATABASE_URL"):
        config.database_url({})


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://teller:s3cret@db.example/bank",
        "postgresql://teller@db.example/bank?password=s3cret&sslmode=require",
        "host=db.example user=teller password=s3cret dbname=bank",
        "host=db.example user=teller password = 's3cret s3cret' dbname=bank",
        "postgresql://:s3cret@db.example/bank",
    ],
)
def test_a_password_is_not_shown(url: str) -> None:
    assert "s3cr" not in config.redact(url)
    assert "db.example" in config.redact(url)
    assert "bank" in config.redact(url)


def test_of_an_address_only_the_place_is_shown() -> None:
    assert config.redact("postgresql://teller@h/bank?sslmode=require") == "postgresql://h/bank"
    assert config.redact("postgresql://h/bank") == "postgresql://h/bank"
    assert config.redact("host=h user=teller dbname=bank") == "host=h dbname=bank"
    assert config.redact("shop.handlers:bill") == "shop.handlers:bill"


@pytest.mark.parametrize("name", ["", "Public", "public", "pg_x", "1a", "a b", 'a"b', "a" * 32])
def test_a_schema_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        config.validate_schema(name)


def test_the_schema_comes_from_the_environment() -> None:
    assert config.schema_name({}) == "penstock"
    assert config.schema_name({"PENSTOCK_SCHEMA": "outbox"}) == "outbox"
