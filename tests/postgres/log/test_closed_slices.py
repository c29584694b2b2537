"""What is written into a slice of events that clean is about to drop is refused, or keeps it (S2).

Only an id from a counter that was set back leads there.
"""

from __future__ import annotations

import pytest

from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from penstock.errors import LogBehind
from tests.guards import without_guard
from tests.kit.log import Connection, drain, open_transaction, put, topic, value
from tests.kit.proof import proves
from tests.kit.storage import condemn, cut, droppable, many, move_low, slices
from tests.postgres.log.test_counters import _set_back
from tests.postgres.log.test_early_events import _free_ids, _jump
from tests.postgres.log.test_trimmed_index import _from

_SIZE = 200


def _a_slice_to_drop(connection: Connection, needed: int = 0) -> None:
    """Ids 1 to 5 are free, all others of the slice are sequenced, and few of them are needed."""
    topic(connection)
    cut(connection, "events", _SIZE)
    _free_ids(connection, 5)
    many(connection, _SIZE - 5)
    drain(connection)
    put(connection, "in the next slice")
    drain(connection)
    move_low(connection, _SIZE - 5 - needed)
    condemn(connection)


def _written_while_it_goes(connection: Connection, url: str) -> None:
    """The slice is droppable when somebody who is still open writes into it."""
    _a_slice_to_drop(connection)
    with open_transaction(url) as publisher:
        _set_back(connection, "events_id")
        put(publisher, "early")
        _jump(connection, _SIZE + 1)
        drop_slices(url, patience_seconds=0.2)
        publisher.commit()
    drop_slices(url)
    drain(connection)
    drop_slices(url)
    assert _from(connection, _SIZE - 4) == ["in the next slice", "early"]
    move_low(connection, _SIZE - 3)
    assert [each.state for each in drop_slices(url)] == [SliceState.DROPPED]


@proves("S2 in a slice that goes")
def test_what_is_written_into_a_slice_that_goes_is_kept(
    connection: Connection, database_url: str
) -> None:
    """Guards: close_slice waits for whoever writes, and looks again."""
    _written_while_it_goes(connection, database_url)


@proves("S2 in a slice that goes", guard="the trigger")
def test_without_the_trigger_it_is_dropped(connection: Connection, database_url: str) -> None:
    """Mutant: the slice is dropped under whoever writes."""
    without_guard(connection, "close_slice", "EXECUTE format(", "PERFORM format(")
    with pytest.raises(AssertionError):
        _written_while_it_goes(connection, database_url)


@proves("S2 in a slice that goes")
def test_nobody_writes_into_a_closed_slice(connection: Connection, database_url: str) -> None:
    """Guard: the trigger refuses it; nothing else of the log is closed."""
    _a_slice_to_drop(connection)
    assert value(connection, "SELECT penstock.close_slice('events_1')")
    _set_back(connection, "events_id")
    with pytest.raises(LogBehind, match="events_id"):
        put(connection, "early")
    _jump(connection, _SIZE + 1)
    put(connection, "new")
    assert [each.state for each in drop_slices(database_url)] == [SliceState.DROPPED]
    drain(connection)
    assert _from(connection, _SIZE - 4) == ["in the next slice", "new"]


@proves("S2 in a slice that goes")
@pytest.mark.parametrize("is_sequenced", [False, True])
def test_a_slice_into_which_an_event_came_is_not_closed(
    connection: Connection, is_sequenced: bool
) -> None:
    """Guards: close_slice looks for what waits and for what is needed, and opens it again."""
    _a_slice_to_drop(connection)
    assert droppable(connection) == ["events_1"]
    for text in ("early", "early too"):
        _jump(connection, 1 if text == "early" else 2)
        put(connection, text)
        _jump(connection, _SIZE + 1)
        if is_sequenced:
            drain(connection)
        assert not value(connection, "SELECT penstock.close_slice('events_1')")


@proves("S2 in a slice that goes", guard="what waits, what is needed")
@pytest.mark.parametrize(
    ("is_sequenced", "guard"),
    [
        (False, "closed.last_id >= settled_events()"),
        (True, "EXISTS (\n        SELECT FROM needed_events(closed.first_id, closed.last_id)"),
    ],
)
def test_without_each_look_it_is_closed(
    connection: Connection, is_sequenced: bool, guard: str
) -> None:
    """Mutants: what waits, and what is needed."""
    without_guard(connection, "close_slice", guard, guard.replace("closed.last_id", "-1"))
    with pytest.raises(AssertionError):
        test_a_slice_into_which_an_event_came_is_not_closed(connection, is_sequenced)


@proves("S2 in a slice that goes")
def test_what_comes_into_a_slice_that_was_copied_is_kept(
    connection: Connection, database_url: str
) -> None:
    """Guard: close_slice compares what is needed with what was copied."""
    _a_slice_to_drop(connection, 3)
    assert value(connection, "SELECT penstock.keep_events()") == "events_1"
    _set_back(connection, "events_id")
    put(connection, "early")
    _jump(connection, _SIZE + 1)
    drain(connection)
    expected = ["193", "194", "195", "in the next slice", "early"]
    drop_slices(database_url)
    assert _from(connection, _SIZE - 7) == expected
    move_low(connection, _SIZE - 3)
    drop_slices(database_url)
    assert "events_1" not in slices(connection, "events")
