"""Real database servers without rights: MySQL, MariaDB and the older PostgreSQL versions.

``python -m tools.servers mysql start --folder F``; in code :class:`MySQLServer`.
"""

from __future__ import annotations

from tools.servers.distribution import Distribution
from tools.servers.errors import ServerUnavailable
from tools.servers.mariadb import MARIADB, MARIADB_10_11
from tools.servers.mysql import MYSQL
from tools.servers.server import DURABLE, FAST, MySQLServer

__all__ = [
    "DURABLE",
    "FAST",
    "MARIADB",
    "MARIADB_10_11",
    "MYSQL",
    "Distribution",
    "MySQLServer",
    "ServerUnavailable",
]
