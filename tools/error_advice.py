"""What to do about errors, for docs/reference/errors.md, where no hint of the code says it.

Most errors with an SQLSTATE have their advice in `penstock.driver_errors`. Where an error is
raised, its own `hint` says more.
"""

from __future__ import annotations

ADVICE = {
    "ConfigurationError": "Set the variable or the option that the message names.",
    "MissingExtra": "Install the packages that the hint names.",
    "InvalidArgument": "Change the argument that the message names; nothing was changed.",
    "InvalidName": "Each name has 1 to 500 printable characters.",
    "NotACloudEvent": "Mend the attribute that the message names.",
    "SchemaMismatch": "Mend the payload at the place that the message names, or set a new version"
    " of the schema.",
    "IncompatibleSchema": "Change the new version, or ask for another compatibility.",
    "NotOnThisEngine": "Use another kind of database, or do without the feature.",
    "PositionsElsewhere": "Call where the leases are kept, or move them: penstock subscription"
    " move.",
    "ForeignTarget": "Name the right place; after the loss of a target: penstock target adopt.",
    "PortTaken": "Choose another port, or end the process that listens there.",
    "TransactionRolledBack": "Begin the transaction again.",
    "NotMigrated": "Run penstock migrate.",
    "SchemaTooNew": "Install the newer Penstock in this program.",
    "MigrationChanged": "Install the version that made the schema, or restore its files.",
    "UnreleasedSchema": "Write the events out with the program that made the schema, drop it,"
    " migrate, and publish them again.",
    "MigrationRunning": "Roll back and begin again.",
    "MigrationBlocked": "End the transaction that holds the lock, and migrate again.",
    "DatabaseTooOld": "Upgrade the server.",
    "CoordinationUnavailable": "Start the store or mend the way to it; consumers connect again by"
    " themselves.",
    "DatabaseUnavailable": "Start the database, or mend address and login; daemon and workers"
    " connect again by themselves.",
    "PermissionDenied": "Grant the right: penstock rights grant.",
    "NotInRole": "Grant the role to the login: penstock rights grant LOGIN ROLE.",
    "NoDiskSpace": "Give the server or the folder more disk, and do it again.",
    "TargetUnavailable": "Mount the disk or start the store; the next run goes on.",
    "GatewayUnavailable": "Call again; with a dedup key a repeated publish makes no second event.",
    "WebhookUnavailable": "Nothing: the relay posts it again.",
    "CopyDamaged": "Let penstock backfill make the copy again.",
    "PayloadMisfit": "Ask for the schema that the payload has, or read bytes.",
    "EpochMissing": "Restore a copy on a target, or begin at the low sequence.",
    "QuotaExceeded": "Publish again after `retry_seconds`; penstock account quota shows the quota.",
    "TooManyParked": "Redrive or drop parked events: penstock dead-letter. Until then the partition"
    " stands still.",
    "StaleAttempt": "Stop working on it.",
    "SinkError": "Look at the sink; the relay tries again.",
}
