"""MySQL, from the only suite of Debian that has it."""

from __future__ import annotations

from pathlib import Path

from tools.servers.distribution import Bootstrap, Distribution


def _bootstrap(root: Path) -> Bootstrap:
    return Bootstrap(
        options=["--initialize-insecure", "--innodb-redo-log-capacity=8M", "--innodb-doublewrite=0"]
    )


MYSQL = Distribution(
    name="mysql",
    title="MySQL",
    suite="sid",
    package="mysql-server-core",
    program="usr/sbin/mysqld",
    oldest=(8, 4),
    messages="usr/share/mysql",
    bootstrap=_bootstrap,
    libraries=("usr/lib/mysql/private",),
    # A second protocol with its own port, which nothing here uses.
    options=("--mysqlx=OFF",),
)
