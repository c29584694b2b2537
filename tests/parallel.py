"""How `make test` divides the tests over its two processes.

Each process has its own servers.  So all tests of a server that is slow to start, or that takes
much memory, run in one of them; other tests stay together by file, for the sake of what a file
prepares once.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

_ENGINE = re.compile(r"[\[-](mysql|mariadb)")
_SERVERS = {
    "tests/archive/": "spark",
    "tests/dagster/": "spark",
    "tests/relay/test_pulsar": "pulsar",
}


def group_of(node_id: str) -> str:
    """What runs in one process with this test."""
    file, _, name = node_id.partition("::")
    engine = _ENGINE.search(name)
    if engine:
        return engine.group(1)
    return next((server for start, server in _SERVERS.items() if file.startswith(start)), file)


class ByServer(LoadScopeScheduling):  # type: ignore[misc]
    """Groups go to whichever process is free, the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
