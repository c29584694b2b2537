"""All that knows what kind of database it is: connections, statements, dialects, migrations.

Other folders write ``database.call(connection, "name", ...)``; the function is defined in
:mod:`penstock.database.calls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.database.calls import (
    call as call,
    call_events as call_events,
    connect as connect,
    database_key as database_key,
    dialect_of as dialect_of,
    driver_connection as driver_connection,
    execute as execute,
    is_cancelled as is_cancelled,
    is_contention as is_contention,
    is_ended_before_commit as is_ended_before_commit,
    is_passing as is_passing,
    is_unavailable as is_unavailable,
    is_without_notice as is_without_notice,
    libpq_url as libpq_url,
    stream as stream,
    typed_errors as typed_errors,
)

if TYPE_CHECKING:
    from penstock.database.calls import Connection as Connection
