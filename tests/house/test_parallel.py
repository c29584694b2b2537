"""Which tests run in one process, and where their files lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel import group_of
from tools import memory


@pytest.mark.parametrize(
    ("node_id", "group"),
    [
        ("tests/contract/test_names.py::test_a[mysql]", "mysql"),
        ("tests/contract/test_check_in.py::test_a[mariadb-5-16]", "mariadb"),
        ("tests/contract/test_names.py::test_a[case-mariadb]", "mariadb"),
        ("tests/test_servers.py::test_a[mysql_server]", "mysql"),
        ("tests/contract/test_names.py::test_a[postgres]", "tests/contract/test_names.py"),
        ("tests/relay/test_pulsar_relay.py::test_a[blind]", "pulsar"),
        ("tests/relay/test_relay.py::test_a", "tests/relay/test_relay.py"),
        ("tests/archive/test_archive.py::test_a", "spark"),
        ("tests/dagster/test_jobs.py::test_a", "spark"),
    ],
)
def test_a_server_lives_in_one_process(node_id: str, group: str) -> None:
    assert group_of(node_id) == group


def test_memory_is_used_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory.folder().parent == memory.MEMORY
    monkeypatch.setattr(memory, "BYTES", 1 << 60)
    assert not memory.has_room()
    monkeypatch.setattr(memory, "BYTES", 0)
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "missing")
    assert not memory.has_room()
