"""Real servers without rights: MySQL, MariaDB, older PostgreSQL versions, etcd, Redis,
Kafka and RabbitMQ.

``python -m tools.servers mysql start --folder F``; in code :class:`MySQLServer`,
:class:`StoreServer`, :class:`KafkaServer` and :class:`RabbitServer`.
"""

from __future__ import annotations

from tools.servers.distribution import Distribution
from tools.servers.errors import ServerUnavailable
from tools.servers.kafka import KafkaServer
from tools.servers.mariadb import MARIADB, MARIADB_10_11
from tools.servers.mysql import MYSQL
from tools.servers.rabbitmq import RabbitServer
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
    "KafkaServer",
    "MySQLServer",
    "RabbitServer",
    "ServerUnavailable",
    "StoreServer",
]
