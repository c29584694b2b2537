"""Real servers without rights: MySQL, MariaDB, older PostgreSQL versions, etcd and Redis.

``python -m tools.servers mysql start --folder F``; in code :class:`MySQLServer`
and :class:`StoreServer`.
"""

from __future__ import annotations

from tools.servers.distribution import Distribution
from tools.servers.errors import ServerUnavailable
from tools.servers.mariadb import MARIADB, MARIADB_10_11
from tools.servers.mysql import MYSQL
from tools.servers.server import DURABLE, FAST, MySQLServer
from tools.servers.stores import ETCD, REDIS, StoreServer

__all__ = [
    "DURABLE",
    "ETCD",
    "FAST",
    "MARIADB",
    "MARIADB_10_11",
    "MYSQL",
    "REDIS",
    "Distribution",
    "MySQLServer",
    "ServerUnavailable",
    "StoreServer",
]
