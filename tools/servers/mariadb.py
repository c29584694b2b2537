"""MariaDB, of two suites of Debian."""

from __future__ import annotations

from pathlib import Path

from tools.servers.distribution import Bootstrap, Distribution
from tools.servers.errors import ServerUnavailable

# What mariadb-install-db reads, without the texts of HELP. The files had other names until 11.0.
_SCRIPTS = (
    "{}_system_tables.sql",
    "{}_performance_tables.sql",
    "{}_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "{}_sys_schema.sql",
)
_PREAMBLE = b"CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n"


def _bootstrap(root: Path) -> Bootstrap:
    for folder, prefix in (("mariadb", "mariadb"), ("mysql", "mysql")):
        files = [root / "usr/share" / folder / each.format(prefix) for each in _SCRIPTS]
        if all(each.is_file() for each in files):
            return Bootstrap(
                options=["--bootstrap", "--innodb-log-file-size=8M", "--max-allowed-packet=8M"],
                script=b"\n".join([_PREAMBLE, *(each.read_bytes() for each in files)]),
                folders=["mysql"],
            )
    raise ServerUnavailable(
        f"the MariaDB in {root} brings no system tables",
        hint="remove that folder, and it is fetched again",
    )


MARIADB = Distribution(
    name="mariadb",
    title="MariaDB",
    suite="trixie",
    package="mariadb-server-core",
    program="usr/sbin/mariadbd",
    oldest=(10, 6),
    messages="usr/share/mariadb",
    bootstrap=_bootstrap,
)

MARIADB_10_11 = Distribution(
    name="mariadb-10.11",
    title="MariaDB 10.11",
    suite="bookworm",
    package="mariadb-server-core",
    program="usr/sbin/mariadbd",
    oldest=(10, 6),
    messages="usr/share/mysql",
    bootstrap=_bootstrap,
)
