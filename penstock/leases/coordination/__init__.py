"""Which consumers are alive and which partitions they hold, in a store that the user chooses.

One contract (:class:`LeaseRegistry`), four stores: the subscription's own database (the default),
etcd, Redis, and the memory of one process.  docs/reference/coordination.md compares them.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from penstock.errors import ConfigurationError
from penstock.leases.coordination.registry import Assignment, Holding, LeaseRegistry, Snapshot

__all__ = ["Assignment", "Holding", "LeaseRegistry", "Snapshot", "open_registry"]


def open_registry(
    url: str, subscription: str, *, lease_seconds: float = 10.0, prefix: str = "penstock"
) -> LeaseRegistry:
    """The registry of a subscription in the store that the URL names.

    ``postgresql://``, ``mysql://``, ``etcd://``, ``redis://`` or ``memory://``; only that store's
    package is imported.  In the database the lease time is the subscription's own.  ``prefix``
    separates the users of one etcd or Redis: two databases need two prefixes.  ``?prefix=`` in the
    URL takes precedence.

    Raises ConfigurationError for a wrong URL, CoordinationUnavailable or DatabaseUnavailable when
    the store does not answer.
    """
    url, prefix = _with_prefix(url, prefix)
    scheme = urlsplit(url).scheme.partition("+")[0]
    if scheme in {"postgres", "postgresql", "mysql", "mariadb"}:
        from penstock.leases.coordination.sql import SqlRegistry

        return SqlRegistry(url, subscription)
    if scheme in {"etcd", "etcds"}:
        from penstock.leases.coordination.etcd import EtcdRegistry

        return EtcdRegistry(url, subscription, lease_seconds=lease_seconds, prefix=prefix)
    if scheme in {"redis", "rediss"}:
        from penstock.leases.coordination.redis import RedisRegistry

        return RedisRegistry(url, subscription, lease_seconds=lease_seconds, prefix=prefix)
    if scheme == "memory":
        from penstock.leases.coordination.memory import MemoryRegistry, space_of

        return MemoryRegistry(space_of((url, prefix, subscription), lease_seconds))
    raise ConfigurationError(
        f"{scheme!r} is not a store for leases",
        hint="use postgresql://, mysql://, etcd://, redis:// or memory://",
    )


def _with_prefix(url: str, prefix: str) -> tuple[str, str]:
    """The URL without its ``prefix``, which is Penstock's own and not the store's."""
    parts = urlsplit(url)
    options = parse_qsl(parts.query)
    prefix = dict(options).get("prefix", prefix)
    rest = urlencode([each for each in options if each[0] != "prefix"])
    return urlunsplit(parts._replace(query=rest)) if options else url, prefix
