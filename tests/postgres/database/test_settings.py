"""Settings: defaults, bounds, and who set what."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from penstock import database
from penstock.errors import InvalidArgument

Connection = psycopg.Connection[Any]

DEFAULTS = {
    "dedup_window_seconds": 3_600.0,
    "kept_share": 0.05,
    "longest_delay_seconds": 2_592_000.0,
    "sequencer_idle_seconds": 0.05,
}


def get(connection: Connection, name: str) -> float:
    return float(database.call(connection, "setting", name=name)[0][0])


def test_defaults_and_what_was_set(connection: Connection) -> None:
    rows = database.call(connection, "settings_of")
    assert {row[0]: row[1] for row in rows} == {row[0]: row[2] for row in rows} == DEFAULTS
    assert {row[3:] for row in rows} == {(None, None)}
    database.call(connection, "set_setting", name="kept_share", value=0.5)
    database.call(connection, "set_setting", name="kept_share", value=0.25)
    assert get(connection, "kept_share") == 0.25
    found = {row[0]: row for row in database.call(connection, "settings_of")}["kept_share"]
    assert found[:3] == ("kept_share", 0.25, 0.05)
    assert found[3] is not None
    assert found[4] == connection.info.user
    database.call(connection, "set_setting", name="kept_share", value=None)
    assert get(connection, "kept_share") == 0.05


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kept_share", 1.1),
        ("kept_share", -0.1),
        ("kept_share", float("nan")),
        ("longest_delay_seconds", float("inf")),
        ("dedup_window_seconds", 0),
        ("no_such_thing", 1),
        ("no_such_thing", None),
    ],
)
def test_what_cannot_be_is_refused(connection: Connection, name: str, value: float | None) -> None:
    with pytest.raises(InvalidArgument) as caught:
        database.call(connection, "set_setting", name=name, value=value)
    assert caught.value.hint


def test_an_unknown_setting_has_no_value(connection: Connection) -> None:
    with pytest.raises(InvalidArgument, match="no setting"):
        get(connection, "no_such_thing")
