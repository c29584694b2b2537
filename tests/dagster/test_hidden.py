"""What is old, what others have and what nobody waits for hides nothing that is looked for."""

from __future__ import annotations

import pytest

import penstock
from ops.archive.sampling import NOTHING
from ops.backfill.asking import due_requests
from ops.backfill.requests import request_backfill
from penstock.archive.markers import adopt_target
from penstock.archive.targets import Target
from tests.dagster.conftest import TOPIC, House
from tests.dagster.test_sensors import record, sealed

OTHER = "shop/returns"


def readable(house: House) -> tuple[bool, list[str]]:
    """What the check of the newest copies says of the topic."""
    (check,) = [
        each
        for each in house.job("inspect").get_asset_check_evaluations()
        if each.check_name == "readable"
    ]
    (table,) = [each.value for each in check.metadata.values()]
    return check.passed, str(table).splitlines()[2:]


def many_log_epochs(house: House, count: int) -> None:
    """So many log epochs of another topic, sealed before those of the topic."""
    penstock.create_topic(house.connection, OTHER)
    house.connection.execute(
        "INSERT INTO penstock.log_epochs (partition_id, log_epoch, first_sequence, last_sequence,"
        " event_count, checksum, sealed_at)"
        " SELECT p.id, n, n, n, 1, '', clock_timestamp() - interval '1 hour'"
        " FROM penstock.partitions AS p JOIN penstock.topics AS t ON t.id = p.topic_id,"
        f" generate_series(1, {count}) AS n WHERE t.address = '{OTHER}'"
    )


def mounted(house: House) -> None:
    """The target is there, and holds no file."""
    (house.folder / "archive").mkdir(exist_ok=True)
    adopt_target(house.url, Target("local", str(house.folder / "archive")))


@pytest.mark.parametrize("days_ago", [0, 1000])
def test_a_lost_copy_is_found_whatever_else_changes(house: House, days_ago: int) -> None:
    """Its topic is not looked for among the first changes of all topics, nor those of two days.

    Guard: sampling._newest, which looks at the topic alone, and as far back as it has to.
    """
    epoch, _ = sealed(house, epochs=1)
    mounted(house)
    record(house, epoch)
    many_log_epochs(house, 1_010)
    house.connection.execute(
        "UPDATE penstock.log_epochs SET sealed_at = sealed_at - %s * interval '1 day'"
        " WHERE event_count > 1",
        [days_ago],
    )
    passed, (said,) = readable(house)
    assert not passed and "is damaged" in said


def test_where_no_copy_was_read_it_is_said(house: House) -> None:
    """Guard: sampling.NOTHING, which a check does not call whole."""
    sealed(house, epochs=1)
    mounted(house)
    assert readable(house) == (True, [f"| local | {NOTHING} |"])


def test_a_request_is_due_however_many_newer_ones_wait_for_later(house: House) -> None:
    """Guard: asking.due_requests, which lists all that wait before it chooses."""
    sealed(house, epochs=1)
    low, high, *later = (
        request_backfill(house.connection, TOPIC, "copy", "local", priority=priority).request
        for priority in (0, 100, *[200] * 250)
    )
    house.connection.execute(
        "UPDATE penstock.backfill_requests SET not_before = clock_timestamp() + interval '1 hour'"
        " WHERE id = ANY (%s)",
        [later],
    )
    runs = house.sense("backfills").run_requests or []
    assert [each.run_key for each in runs] == [f"backfill:{high}:1", f"backfill:{low}:1"]
    assert [each.request for each in due_requests(house.connection, 1)] == [high]
