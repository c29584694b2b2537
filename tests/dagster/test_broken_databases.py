"""A fleet of which some databases cannot be asked: each is told of, and the others are shown."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import dagster as dg
import psycopg
import pytest

from dagster_project import catalogue, definitions
from tests.dagster.conftest import TOPIC, House
from tests.kit.proof import proves
from tests.kit.silent import frozen_server

NOBODY = "127.0.0.1:1"


def write(path: Path, environment: pytest.MonkeyPatch, urls: Mapping[str, str]) -> None:
    """A policy file of these databases; the environment names none."""
    environment.delenv("PENSTOCK_DATABASE_URL")
    lines = ["databases:"]
    for name, url in urls.items():
        lines.append(f"  {name}: {{url: '${{{name.upper()}_URL}}', topics: {{{TOPIC}: }}}}")
        if url:
            environment.setenv(f"{name.upper()}_URL", url)
    path.write_text("\n".join(lines), encoding="utf-8")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the load has said."""
    return [each.getMessage() for each in caplog.records if each.name == "penstock.dagster"]


@proves("one database stops no other")
def test_whatever_is_wrong_with_a_database_is_its_own(
    house: House,
    environment: pytest.MonkeyPatch,
    policy_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards: catalogue._tell and _url; opening._connected for the one that is frozen."""
    house.create_topic()
    with frozen_server() as place:
        urls = {
            "frozen": f"mysql://ann:s3cret@{place}/x",
            "gone": f"postgresql://ann:s3cret@{NOBODY}/gone",
            "no_host": "mysql://ann:s3cret@a..b/x",
            "no_host_either": "postgresql://ann:s3cret@a..b/x",
            "no_file": f"mysql://ann:s3cret@{NOBODY}/x?ssl_ca=/nonexistent/ca.pem",
            "no_number": "mysql://ann:s3cret@other/x?connect_timeout=99999999999",
            "no_variable": "",
            "no_address": "s3cret",
            "twin": house.url,
            "other_twin": f"{house.url}?connect_timeout=9",
        }
        write(policy_path, environment, urls)
        begun = time.monotonic()
        fleet = catalogue.read()
        assert time.monotonic() - begun < 10
    assert [each.database for each in fleet] == [*urls]
    assert all(each.topics == (TOPIC,) and not each.existing for each in fleet)
    dg.Definitions.validate_loadable(definitions.build(fleet))
    said = {name: told for told in warnings_of(caplog) for name in urls if f" {name} are " in told}
    assert said.keys() == urls.keys()
    for name, words in {
        "frozen": "frozen",
        "gone": "or correct databases.gone.url in the policy file",
        "no_host": "correct databases.no_host.url in the policy file",
        "no_host_either": "correct databases.no_host_either.url in the policy file",
        "no_file": "look at ssl_ca, ssl_cert and ssl_key",
        "no_number": "correct databases.no_number.url in the policy file",
        "no_variable": "taken from NO_VARIABLE_URL, which is not set",
        "no_address": "databases.no_address.url: the address of the database is not a URL",
        "twin": "databases.twin.url and databases.other_twin.url lead to the same database",
        "other_twin": "databases.other_twin.url and databases.twin.url lead to the same database",
    }.items():
        assert words in said[name], said[name]
        assert "PENSTOCK_DATABASE_URL" not in said[name] and "s3cret" not in said[name]


@proves("one database stops no other")
def test_a_table_that_somebody_has_locked_stops_no_load(
    house: House, environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guard: catalogue._tell, which takes the driver's own errors too."""
    environment.setattr(catalogue, "STATEMENT_MS", 200)
    house.create_topic()
    with psycopg.connect(house.url) as holder:
        holder.execute("LOCK TABLE penstock.topics")
        (found,) = catalogue.read()
    assert found.topics == (TOPIC,) and not found.existing
    (said,) = warnings_of(caplog)
    assert "canceling statement due to statement timeout" in said


@proves("one database stops no other")
def test_a_database_that_says_nothing_is_not_waited_for(
    house: House,
    environment: pytest.MonkeyPatch,
    policy_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guard: the deadline of catalogue._answers. The connect alone would take a minute."""
    environment.setattr(catalogue, "LONGEST_SECONDS", 2.0)
    house.create_topic()
    with frozen_server() as place:
        urls = {
            "frozen": f"mysql://ann@{place}/x?connect_timeout=60",
            "also_frozen": f"postgresql://ann@{place}/x?connect_timeout=60",
            "alive": house.url,
        }
        write(policy_path, environment, urls)
        begun = time.monotonic()
        fleet = catalogue.read()
        assert time.monotonic() - begun < 10
    assert [each.existing for each in fleet] == [frozenset(), frozenset(), frozenset({TOPIC})]
    said = warnings_of(caplog)
    assert len(said) == 2 and all("no answer within 2 seconds" in each for each in said)


@proves("a key never changes its topic")
def test_names_that_are_joined_alike_load_side_by_side(
    environment: pytest.MonkeyPatch, policy_path: Path
) -> None:
    """No two keys, jobs or ops have one name.

    Guards: the names of databases in the policy file, and keys.topic_slug. With two underscores for
    one, `shop/order_x/items` and `x/items` in the database `shop_order` would make one op.
    """
    names = (
        "shop/order_x/items", "x/items", "shop/order-x/items", "shop/order/x/items", "a/health",
        "relay/a",
    )  # fmt: skip
    policy = "{archive: [local], retention: {minimum_age: 1d}}"
    topics = ", ".join(f"{name}: {policy}" for name in names)
    relays = "{health: {topic: a/health, sink: %s}, a-log: {topic: a/health, sink: %s}}"
    lines = ["targets: {local: archive}", f"topics: {{{topics}}}"]
    lines.append(f"relays: {relays % ('own', 'we!rd scheme:x')}")
    lines.append("databases:")
    for name in ("a", "a_relay", "relay", "penstock", "shop_order", "shop", "relay_database"):
        url = f"postgresql://ann@{NOBODY}/{name}"
        sent = relays % (name, name)
        lines.append(f"  {name}: {{url: '{url}', topics: {{{topics}}}, relays: {sent}}}")
    policy_path.write_text("\n".join(lines), encoding="utf-8")
    environment.setenv("PENSTOCK_DATABASE_URL", f"postgresql://ann@{NOBODY}/own")
    fleet = catalogue.read()
    assert len(fleet) == 8
    dg.Definitions.validate_loadable(definitions.build(fleet))
