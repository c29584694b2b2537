"""Penstock turns the database that an application already has into an event platform.

    with connection.transaction():
        ...  # the application's own writes
        penstock.publish(connection, "bank/accounts", b"...", key="account 7")

The event exists if and only if the transaction commits.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock import (
        aio as aio,
        archive as archive,
        log as log,
        subscriptions as subscriptions,
        testing as testing,
    )
    from penstock.consumer.queue.consumer import QueueConsumer as QueueConsumer
    from penstock.consumer.queue.delivery import QueueDelivery as QueueDelivery
    from penstock.consumer.running.app import App as App
    from penstock.consumer.running.async_consumer import (
        AsyncConsumer as AsyncConsumer,
        AsyncQueueConsumer as AsyncQueueConsumer,
    )
    from penstock.consumer.stream.consumer import Batch as Batch, Consumer as Consumer
    from penstock.database import connect as connect, migrate as migrate
    from penstock.database.config import database_url as database_url
    from penstock.errors import (
        AlreadyExists as AlreadyExists,
        BackPressure as BackPressure,
        BackwardCommit as BackwardCommit,
        BelowLowSequence as BelowLowSequence,
        BeyondHighWatermark as BeyondHighWatermark,
        BookmarkNotFound as BookmarkNotFound,
        ConfigurationError as ConfigurationError,
        ControlCharacter as ControlCharacter,
        DatabaseTooOld as DatabaseTooOld,
        DatabaseUnavailable as DatabaseUnavailable,
        DuplicateSession as DuplicateSession,
        EmptyName as EmptyName,
        EmptySegment as EmptySegment,
        EpochError as EpochError,
        EpochMissing as EpochMissing,
        InUse as InUse,
        InvalidArgument as InvalidArgument,
        InvalidName as InvalidName,
        InvalidPartition as InvalidPartition,
        LogBehind as LogBehind,
        MalformedReceipt as MalformedReceipt,
        MigrationBlocked as MigrationBlocked,
        MigrationChanged as MigrationChanged,
        MigrationRunning as MigrationRunning,
        MissingExtra as MissingExtra,
        MovedUnderItself as MovedUnderItself,
        NamespaceNotFound as NamespaceNotFound,
        NameTooLong as NameTooLong,
        NoDiskSpace as NoDiskSpace,
        NotInRole as NotInRole,
        NotMigrated as NotMigrated,
        NotOnThisEngine as NotOnThisEngine,
        PathTooLong as PathTooLong,
        PayloadTooLarge as PayloadTooLarge,
        PenstockError as PenstockError,
        PermissionDenied as PermissionDenied,
        PortTaken as PortTaken,
        RetentionRefused as RetentionRefused,
        SchemaTooNew as SchemaTooNew,
        SinkError as SinkError,
        StaleLease as StaleLease,
        StaleReceipt as StaleReceipt,
        SubscriptionNotFound as SubscriptionNotFound,
        TopicNotFound as TopicNotFound,
        UnknownConsumer as UnknownConsumer,
        UnreleasedSchema as UnreleasedSchema,
        UsageError as UsageError,
        WriteDiffers as WriteDiffers,
        WriteLost as WriteLost,
        WrongIsolation as WrongIsolation,
        WrongMode as WrongMode,
    )
    from penstock.leases import coordination as coordination
    from penstock.log import (
        fetch as fetch,
        restores as history,  # noqa: F401 (the public name)
        sequence as sequence,
    )
    from penstock.publishing.bulk import publish_bulk as publish_bulk
    from penstock.publishing.event_types import Registry as Registry
    from penstock.publishing.publish import (
        publish as publish,
        publish_batch as publish_batch,
        publish_once as publish_once,
    )
    from penstock.publishing.tables import publish_table as publish_table
    from penstock.publishing.waker import Waker as Waker
    from penstock.publishing.within_transaction import within_transaction as within_transaction
    from penstock.records import (
        Event as Event,
        Lease as Lease,
        LogEpoch as LogEpoch,
        Message as Message,
        Namespace as Namespace,
        PartitionRange as PartitionRange,
        Published as Published,
        Topic as Topic,
        TopicDescription as TopicDescription,
    )
    from penstock.subscriptions import (
        dead_letters as dead_letters,
        forwarding as forwarding,
        inbox as inbox,
        policies as policies,
        queue as queue,
        stream as stream,
    )
    from penstock.subscriptions.stream import subscribe as subscribe, unsubscribe as unsubscribe
    from penstock.topics import holds as holds
    from penstock.topics.names import (
        create_namespace as create_namespace,
        create_topic as create_topic,
        delete_namespace as delete_namespace,
        delete_topic as delete_topic,
        describe_topic as describe_topic,
        list_namespaces as list_namespaces,
        list_topics as list_topics,
        move_namespace as move_namespace,
        move_topic as move_topic,
        rename_namespace as rename_namespace,
        rename_topic as rename_topic,
        resize_topic as resize_topic,
    )
    from penstock.topics.rights import (
        grant_namespace as grant_namespace,
        grants_of as grants_of,
        revoke_namespace as revoke_namespace,
    )
    from penstock.topics.strategies import register_strategy as register_strategy

__version__ = "0.1.0"

#: The module of each name.  Nothing is imported before it is used, so a publisher does not load
#: the consumer.
_NAMES = {
    "penstock.consumer.running.app": ("App",),
    "penstock.consumer.running.async_consumer": (
        "AsyncConsumer",
        "AsyncQueueConsumer",
    ),
    "penstock.consumer.stream.consumer": (
        "Batch",
        "Consumer",
    ),
    "penstock.consumer.queue.consumer": ("QueueConsumer",),
    "penstock.consumer.queue.delivery": ("QueueDelivery",),
    "penstock.database": ("connect",),
    "penstock.database.config": ("database_url",),
    "penstock.errors": (
        "AlreadyExists",
        "BackPressure",
        "BackwardCommit",
        "BelowLowSequence",
        "BookmarkNotFound",
        "BeyondHighWatermark",
        "ConfigurationError",
        "ControlCharacter",
        "DatabaseTooOld",
        "DatabaseUnavailable",
        "DuplicateSession",
        "EmptyName",
        "EmptySegment",
        "EpochError",
        "EpochMissing",
        "InUse",
        "InvalidArgument",
        "InvalidName",
        "InvalidPartition",
        "LogBehind",
        "MalformedReceipt",
        "MigrationBlocked",
        "MigrationChanged",
        "MigrationRunning",
        "MovedUnderItself",
        "NameTooLong",
        "MissingExtra",
        "NamespaceNotFound",
        "NoDiskSpace",
        "NotInRole",
        "NotMigrated",
        "NotOnThisEngine",
        "PathTooLong",
        "PayloadTooLarge",
        "PenstockError",
        "PermissionDenied",
        "PortTaken",
        "RetentionRefused",
        "SchemaTooNew",
        "SinkError",
        "StaleLease",
        "StaleReceipt",
        "SubscriptionNotFound",
        "TopicNotFound",
        "UnknownConsumer",
        "UnreleasedSchema",
        "UsageError",
        "WriteDiffers",
        "WriteLost",
        "WrongIsolation",
        "WrongMode",
    ),
    "penstock.log": (
        "fetch",
        "sequence",
    ),
    "penstock.publishing.bulk": ("publish_bulk",),
    "penstock.publishing.event_types": ("Registry",),
    "penstock.publishing.publish": (
        "publish",
        "publish_batch",
        "publish_once",
    ),
    "penstock.publishing.tables": ("publish_table",),
    "penstock.publishing.waker": ("Waker",),
    "penstock.publishing.within_transaction": ("within_transaction",),
    "penstock.records": (
        "Event",
        "Lease",
        "LogEpoch",
        "Message",
        "Namespace",
        "PartitionRange",
        "Published",
        "Topic",
        "TopicDescription",
    ),
    "penstock.subscriptions.stream": (
        "subscribe",
        "unsubscribe",
    ),
    "penstock.topics.names": (
        "create_namespace",
        "create_topic",
        "delete_namespace",
        "delete_topic",
        "describe_topic",
        "list_namespaces",
        "list_topics",
        "move_namespace",
        "move_topic",
        "rename_namespace",
        "rename_topic",
        "resize_topic",
    ),
    "penstock.topics.rights": (
        "grant_namespace",
        "grants_of",
        "revoke_namespace",
    ),
    "penstock.topics.strategies": ("register_strategy",),
}
_MODULES = {
    "aio": "penstock.aio",
    "archive": "penstock.archive",
    "coordination": "penstock.leases.coordination",
    "dead_letters": "penstock.subscriptions.dead_letters",
    "forwarding": "penstock.subscriptions.forwarding",
    "history": "penstock.log.restores",
    "holds": "penstock.topics.holds",
    "inbox": "penstock.subscriptions.inbox",
    "log": "penstock.log",
    "migrate": "penstock.database.migrate",
    "policies": "penstock.subscriptions.policies",
    "queue": "penstock.subscriptions.queue",
    "stream": "penstock.subscriptions.stream",
    "subscriptions": "penstock.subscriptions",
    "testing": "penstock.testing",
}
#: The modules that need no extra, and that a running application uses.
_LIGHT = ("aio", "dead_letters", "inbox", "log", "policies", "queue", "stream", "subscriptions")
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, *_MODULES, "preload"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = import_module(_MODULES[name])
    elif name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    globals()[name] = found
    return found


def preload() -> None:
    """Import now what the functions of this package would import when they are first used.

    For a program that forks after it has started threads: a thread that is importing at the moment
    of the fork leaves the new process with a lock of the import that nobody gives back.
    """
    for name in sorted({*_HOMES.values(), *(_MODULES[each] for each in _LIGHT)}):
        import_module(name)
    import_module("penstock.database.dialects").load_drivers()
    import_module("penstock.publishing.tracing").load()


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
