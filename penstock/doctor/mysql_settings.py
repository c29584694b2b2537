"""Settings of MySQL and MariaDB: which values are wrong for an event log, and what mends each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.doctor.findings import Finding, Rule, Severity, shell

#: A batch of events travels as one statement, in base64.
SMALLEST_PACKET = 8 * 1024 * 1024

_STRICT = ("STRICT_TRANS_TABLES", "STRICT_ALL_TABLES")


@dataclass(frozen=True, slots=True)
class Client:
    """How the command-line client reaches the server that is examined."""

    arguments: tuple[str, ...]
    is_mariadb: bool

    def run(self, statement: str) -> str:
        """The command that runs a statement."""
        return shell("mysql", *self.arguments, "-e", statement)

    def set(self, name: str, value: str) -> str:
        """Sets a variable.  MariaDB loses the value at the next start, and then reads its file."""
        if self.is_mariadb:
            command = self.run(f"SET GLOBAL {name} = {value}")
            return f"{command}  # and write {name} = {value} into the server's file"
        return self.run(f"SET PERSIST {name} = {value}")


def _is_off(value: str) -> bool:
    return value.upper() in {"OFF", "0"}


def _is_on(value: str) -> bool:
    return not _is_off(value)


_LOST = "committed events can be lost by a crash, and a lease_epoch be given out again"
_REFUSED = "nothing can be published, sequenced or committed"
_OWN = "Penstock's functions that need READ COMMITTED refuse it (PS018), and others lock too much"

RULES = {
    "innodb_flush_log_at_trx_commit": Rule(
        "flush_log", Severity.ERROR, lambda value: value != "1", _LOST, "1"
    ),
    "sync_binlog": Rule(
        "sync_binlog",
        Severity.ERROR,
        lambda value: value != "1",
        "after a crash replicas and the binary log may lack events that are in the log",
        "1",
    ),
    "read_only": Rule("read_only", Severity.ERROR, _is_on, _REFUSED, "OFF"),
    "innodb_read_only": Rule("read_only", Severity.ERROR, _is_on, _REFUSED, ""),
    "innodb_doublewrite": Rule(
        "doublewrite", Severity.ERROR, _is_off, "a crash of the machine can destroy pages", ""
    ),
    "auto_increment_increment": Rule(
        "auto_increment",
        Severity.ERROR,
        lambda value: value != "1",
        "ids do not rise by one, as with several writing nodes: one has to write",
        "1",
    ),
    "sql_mode": Rule(
        "sql_mode",
        Severity.WARNING,
        lambda value: not any(each in value for each in _STRICT),
        "values that do not fit are cut in silence before they are published",
        "CONCAT(@@GLOBAL.sql_mode, ',STRICT_TRANS_TABLES')",
    ),
    "transaction_isolation": Rule(
        "isolation",
        Severity.WARNING,
        lambda value: value not in {"READ-COMMITTED", "REPEATABLE-READ"},
        _OWN,
        "'READ-COMMITTED'",
    ),
    "max_allowed_packet": Rule(
        "packet",
        Severity.WARNING,
        lambda value: int(value) < SMALLEST_PACKET,
        "batches of events do not fit into a statement",
        "67108864",
    ),
}


def examine_settings(values: Mapping[str, str], client: Client) -> Iterator[Finding]:
    """A finding for each wrong value."""
    # MariaDB called it so before 11.1, and now has both.
    older = {"tx_isolation": RULES["transaction_isolation"]}
    rules = RULES if "transaction_isolation" in values else RULES | older
    for name, value in sorted(values.items()):
        rule = rules.get(name)
        if rule is None or not rule.is_wrong(value):
            continue
        if name == "sync_binlog" and _is_off(values.get("log_bin", "OFF")):
            continue
        yield Finding(
            rule.check,
            rule.severity,
            f"{name} is {value or 'empty'}: {rule.consequence}",
            client.set(name, rule.right)
            if rule.right
            else f"mysqld --{name.replace('_', '-')}={'ON' if _is_off(value) else 'OFF'} ...  "
            "# in the server's file, and start it again",
        )
