"""Penstock turns the database that an application already has into an event platform.

    with connection.transaction():
        ...  # the application's own writes
        penstock.publish(connection, "bank/accounts", b"...", key="account 7")

The event exists if and only if the transaction commits.
"""

from __future__ import annotations

from penstock.config import database_url
from penstock.consumer import Batch, Consumer
from penstock.database import connect
from penstock.errors import (
    AlreadyExists,
    BackPressure,
    BackwardCommit,
    BelowLowSequence,
    BeyondHighWatermark,
    ConfigurationError,
    ControlCharacter,
    DatabaseTooOld,
    DatabaseUnavailable,
    DuplicateSession,
    EmptyName,
    EmptySegment,
    EpochError,
    InUse,
    InvalidArgument,
    InvalidName,
    InvalidPartition,
    LogBehind,
    MigrationBlocked,
    MigrationChanged,
    MovedUnderItself,
    NamespaceNotFound,
    NameTooLong,
    NoDiskSpace,
    NotMigrated,
    PathTooLong,
    PayloadTooLarge,
    PenstockError,
    PermissionDenied,
    PortTaken,
    RetentionRefused,
    SchemaTooNew,
    SinkError,
    StaleLease,
    SubscriptionNotFound,
    TopicNotFound,
    UnknownConsumer,
    UsageError,
    WrongIsolation,
)
from penstock.log import fetch, sequence
from penstock.names import (
    create_namespace,
    create_topic,
    describe_topic,
    list_namespaces,
    list_topics,
)
from penstock.publish import publish, publish_batch, publish_bulk
from penstock.records import (
    Event,
    Lease,
    LogEpoch,
    Message,
    Namespace,
    PartitionRange,
    Topic,
    TopicDescription,
)
from penstock.stream import subscribe, unsubscribe

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "BackPressure",
    "BackwardCommit",
    "Batch",
    "BelowLowSequence",
    "BeyondHighWatermark",
    "ConfigurationError",
    "Consumer",
    "ControlCharacter",
    "DatabaseTooOld",
    "DatabaseUnavailable",
    "DuplicateSession",
    "EmptyName",
    "EmptySegment",
    "EpochError",
    "Event",
    "InUse",
    "InvalidArgument",
    "InvalidName",
    "InvalidPartition",
    "Lease",
    "LogBehind",
    "LogEpoch",
    "Message",
    "MigrationBlocked",
    "MigrationChanged",
    "MovedUnderItself",
    "NameTooLong",
    "Namespace",
    "NamespaceNotFound",
    "NoDiskSpace",
    "NotMigrated",
    "PartitionRange",
    "PathTooLong",
    "PayloadTooLarge",
    "PenstockError",
    "PermissionDenied",
    "PortTaken",
    "RetentionRefused",
    "SchemaTooNew",
    "SinkError",
    "StaleLease",
    "SubscriptionNotFound",
    "Topic",
    "TopicDescription",
    "TopicNotFound",
    "UnknownConsumer",
    "UsageError",
    "WrongIsolation",
    "connect",
    "create_namespace",
    "create_topic",
    "database_url",
    "describe_topic",
    "fetch",
    "list_namespaces",
    "list_topics",
    "publish",
    "publish_batch",
    "publish_bulk",
    "sequence",
    "subscribe",
    "unsubscribe",
]
