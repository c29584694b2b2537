"""Penstock turns the database that an application already has into an event platform.

    with connection.transaction():
        ...  # the application's own writes
        penstock.publish(connection, "bank/accounts", b"...", key="account 7")

The event exists if and only if the transaction commits.
"""

from __future__ import annotations

from penstock.app import App
from penstock.async_consumer import AsyncConsumer
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
    delete_namespace,
    delete_topic,
    describe_topic,
    list_namespaces,
    list_topics,
    move_namespace,
    move_topic,
    rename_namespace,
    rename_topic,
    resize_topic,
)
from penstock.publish import publish, publish_batch, publish_bulk, publish_once
from penstock.records import (
    Event,
    Lease,
    LogEpoch,
    Message,
    Namespace,
    PartitionRange,
    Published,
    Topic,
    TopicDescription,
)
from penstock.registry import Registry
from penstock.rights import grant_namespace, grants_of, revoke_namespace
from penstock.strategies import register_strategy
from penstock.stream import subscribe, unsubscribe
from penstock.transactions import within_transaction

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "App",
    "AsyncConsumer",
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
    "Published",
    "Registry",
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
    "delete_namespace",
    "delete_topic",
    "describe_topic",
    "fetch",
    "grant_namespace",
    "grants_of",
    "list_namespaces",
    "list_topics",
    "move_namespace",
    "move_topic",
    "publish",
    "publish_batch",
    "publish_bulk",
    "publish_once",
    "register_strategy",
    "rename_namespace",
    "rename_topic",
    "resize_topic",
    "revoke_namespace",
    "sequence",
    "subscribe",
    "unsubscribe",
    "within_transaction",
]
