"""A login of the role reader: what only looks needs no other role."""

from __future__ import annotations

import pytest

from penstock.subscriptions import dead_letters, stream
from tests.dagster.conftest import TOPIC, House
from tests.kit.tenants import tenants_of

READERS = "readers"


def dead_letter(house: House) -> None:
    """One of the subscription's, whose reason a reader may not see."""
    stream.subscribe(house.connection, READERS, [TOPIC], start="earliest")
    member = stream.join(house.connection, READERS, "one")
    lease, *_ = stream.check_in(house.connection, member)
    stream.poll(house.connection, member, [lease])
    dead_letters.give_up(house.connection, member, lease, 1, "the payload is bad", attempts=1)


def test_the_job_health_is_done_by_a_reader(house: House, environment: pytest.MonkeyPatch) -> None:
    """Guards: the role reader has restore_status; health counts dead letters, and lists them only
    where the login may.
    """
    house.create_topic()
    house.done("policies")
    house.publish(20)
    house.done("sequence")
    dead_letter(house)
    whole = house.job("health")
    assert "the payload is bad" in str(whole.get_asset_materialization_events())
    with tenants_of(house.connection, house.url) as tenants:
        tenants.install()
        environment.setenv("PENSTOCK_DATABASE_URL", tenants.url_of(tenants.login("reader")))
        done = house.done("health")
    told = str(done.get_asset_materialization_events())
    assert "1 dead letters" in told and "the payload is bad" not in told
