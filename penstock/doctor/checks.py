"""Every check of the doctor: when it finds something, and on which servers it looks."""

from __future__ import annotations

from dataclasses import dataclass

ALL = "all"
POSTGRES = "PostgreSQL"
MYSQL = "MySQL, MariaDB"


@dataclass(frozen=True, slots=True)
class Check:
    """When a check finds something, and on which servers it looks."""

    found_when: str
    on: str = ALL


CHECKS = {
    "schema": Check("not migrated, or not up to date"),
    "server": Check("older than Penstock needs"),
    "replica": Check("the address leads to a standby", POSTGRES),
    "read_only": Check("transactions or the server are read-only, as on a replica"),
    "fsync": Check("off", POSTGRES),
    "full_page_writes": Check("off", POSTGRES),
    "synchronous_commit": Check("off", POSTGRES),
    "flush_log": Check("innodb_flush_log_at_trx_commit is not 1", MYSQL),
    "sync_binlog": Check("sync_binlog is not 1, with a binary log", MYSQL),
    "doublewrite": Check("off", MYSQL),
    "isolation": Check(
        "sessions begin at a level other than READ COMMITTED; on MySQL, REPEATABLE READ, its "
        "default, is no finding",
    ),
    "timeout": Check("statement_timeout or transaction_timeout below 10 s", POSTGRES),
    "autovacuum": Check("off, or without the counts that it needs", POSTGRES),
    "skips": Check(
        "retention removed events that a subscription has not read (max_lag_seconds, "
        "max_bytes), and it stands there still",
    ),
    "max_bytes": Check(
        "a topic is above the limit of its retention, and a hold or a missing copy keeps it "
        "there, or no clean has run",
    ),
    "auto_increment": Check("ids do not rise by one", MYSQL),
    "sql_mode": Check("no strict mode", MYSQL),
    "packet": Check("max_allowed_packet is below 8 MiB", MYSQL),
    "pooler": Check(
        "sessions change between transactions, as with PgBouncer in transaction mode",
        POSTGRES,
    ),
    "notices": Check(
        "the queue of notices is a quarter full, because a listener reads none in a long "
        "transaction",
        POSTGRES,
    ),
    "snapshot": Check(
        "a transaction is open for long, also in other databases of the server: whose, and "
        "its last act",
    ),
    "prepared_transaction": Check(
        "prepared for long, and neither committed nor rolled back; on PostgreSQL an error "
        "after ten seconds when it holds a lease, because nobody else can read the partition",
    ),
    "publication": Check(
        "a publication has a table of Penstock without a replica identity: the server refuses "
        "to change its rows",
        POSTGRES,
    ),
    "replication_slot": Check("nobody reads it", POSTGRES),
    "identity": Check(
        "the server refuses the functions that say which server it is, so a restore or "
        "failover may go unnoticed",
        POSTGRES,
    ),
    "refused": Check("the server refuses another function that the doctor calls", POSTGRES),
    "hidden_sessions": Check(
        "the schema's owner (MySQL: the login) may not look at the sessions of others",
    ),
    "sequencer": Check(
        "events wait and no pass is made: by nobody, or by a session that holds the sequencer "
        "and does not go on",
    ),
    "unsequenced": Check("events wait although passes are made"),
    "dead_letters": Check("a subscription has given up events; redriven ones do not count"),
    "queue_full": Check(
        "a queue has as much in flight, or behind a key, as max_in_flight allows, and hands "
        "out nothing more",
    ),
    "queue_old": Check("the oldest event of a queue has waited for ten minutes"),
    "removal": Check(
        "a deleted subscription has rows left of which none was deleted for ten minutes",
    ),
    "storage": Check("prepared storage is enough for less than two days, or for few ids"),
    "slice": Check(
        "a slice of a table is half detached, detached or gone; one that clean drops, after "
        "ten minutes",
        POSTGRES,
    ),
    "restore": Check("a sink, an archive or a client has seen more than the log holds"),
}
