"""F31 on PostgreSQL alone: transaction numbers beyond 32 bits, histories, and no counter cycles."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ops.retention.clean import drop_slices
from ops.retention.storage import SliceState
from penstock import log
from penstock.database.migrate import migrate
from penstock.errors import PenstockError
from penstock.log.histories import histories, reconcile
from resources.embedded import EmbeddedPostgres
from resources.system_user import as_server_user
from tests.guards import without_guard
from tests.kit.log import TOPIC, Connection, drain, open_transaction, put, topic, value
from tests.kit.proof import proves
from tests.kit.storage import cut, many, move_low
from tests.kit.stream import filled, member_with_lease
from tests.support import FAST_SETTINGS, missing

#: How often the lower 32 bits of transaction numbers have begun anew.
EPOCH = 5
LAST_INT = 2**31 - 1


@pytest.fixture
def beyond(tmp_path: Path) -> Iterator[str]:
    """A migrated database whose transaction numbers need more than 32 bits."""
    try:
        server = EmbeddedPostgres(tmp_path / "server", settings=FAST_SETTINGS)
        server.start()
    except PenstockError as error:
        missing("PostgreSQL", error)
    server.stop()
    command = [str(server.bin_dir / "pg_resetwal"), "--epoch", str(EPOCH), "--pgdata"]
    data = server.directory / "data"
    subprocess.run(
        as_server_user([*command, str(data)], needs=(server.bin_dir, data)), check=True, timeout=60
    )
    with server:
        migrate(server.url())
        yield server.url()


def test_no_counter_cycles(connection: Connection) -> None:
    """A number that comes again would be taken for an old one."""
    found = connection.execute(
        "SELECT sequencename FROM pg_sequences WHERE schemaname = 'penstock'"
        " AND (cycle OR data_type <> 'bigint'::regtype)"
    ).fetchall()
    assert found == []


def _late_and_dropped(url: str) -> tuple[list[str], list[SliceState]]:
    """What is read with a late commit, and how the first slice of events went."""
    with psycopg.connect(url, autocommit=True) as connection:
        topic(connection)
        cut(connection, "events", 100)
        many(connection, 100)
        drain(connection)
        with open_transaction(url) as late:
            put(late, "late")
            put(connection, "quick")
            drain(connection)
            late.commit()
        drain(connection)
        assert value(connection, "SELECT min(tx)::text::bigint >> 32 FROM penstock.events") == EPOCH
        found = [event.payload.decode() for event in log.fetch(connection, TOPIC, 0, 101)]
        move_low(connection, 100)
    done = drop_slices(url, patience_seconds=1)
    return found, [each.state for each in done if each.parent == "events"]


@proves("F31")
def test_transaction_numbers_of_more_than_32_bits(beyond: str) -> None:
    """Guards: xid8 everywhere; oldest_snapshot puts the upper half before relfrozenxid."""
    assert _late_and_dropped(beyond) == (["quick", "late"], [SliceState.DROPPED])


def test_by_the_lower_half_nothing_is_ever_dropped(beyond: str) -> None:
    """Mutant: the catalog's 32 bits are taken for the whole number."""
    with psycopg.connect(beyond, autocommit=True) as connection:
        without_guard(
            connection,
            "oldest_snapshot",
            "(present - mod(mod(present, 4294967296) - frozen + 4294967296, 4294967296))",
            "frozen",
        )
    assert _late_and_dropped(beyond)[1] == []


@proves("F31")
def test_histories_end_without_wrapping(connection: Connection) -> None:
    """Guard: the columns' types; lease_epoch still rises with the last history."""
    filled(connection)
    _, lease = member_with_lease(connection, "a")
    connection.execute(
        "INSERT INTO penstock.histories (history, reason) VALUES (%s, 'long ago')", (LAST_INT - 1,)
    )
    assert reconcile(connection, "the last one") == LAST_INT
    stored = value(connection, "SELECT lease_epoch FROM penstock.leases")
    assert stored == (LAST_INT << 32) + 1 > lease.lease_epoch
    with pytest.raises((PenstockError, psycopg.DataError)):
        reconcile(connection, "one too many")
    assert histories(connection)[-1].history == LAST_INT
    assert lease.history == 1
