"""The tests' etcd and Redis: started once, joined, found again, ended separately."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from resources import folder_server
from tests.support import missing
from tools.servers import ETCD, REDIS, ServerUnavailable, StoreServer, catalogue
from tools.servers.stores import Store


@pytest.fixture(params=[ETCD, REDIS], ids=lambda each: each.name)
def store(request: pytest.FixtureRequest) -> Store:
    """A program that is ready to start."""
    made: Store = request.param
    try:
        made.root()
    except ServerUnavailable as error:
        missing(made.title, error)
    return made


def test_a_second_start_joins_the_first(store: Store, tmp_path: Path) -> None:
    with StoreServer(tmp_path, store) as server:
        assert server.start() is False
        other = catalogue.in_folder(tmp_path / "server.json")
        assert isinstance(other, StoreServer)
        assert other.start() is False
        assert other.url() == server.url()
        assert other.stop() is True
        assert server.pid is None
    assert server.stop() is False
    assert catalogue.fetch(store.name).count(".") == 2


def test_a_port_that_somebody_took_costs_another_attempt(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as holder, StoreServer(tmp_path / "first", store) as first:
        holder.bind((folder_server.HOST, 0))
        holder.listen()
        taken = int(holder.getsockname()[1])
        free = folder_server.free_port
        ports = iter([taken, first.port])
        monkeypatch.setattr(folder_server, "free_port", lambda: next(ports, None) or free())
        with StoreServer(tmp_path / "second", store) as server:
            assert server.port not in {taken, first.port}
    assert next(ports, None) is None


def test_without_debian_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match="PENSTOCK_TEST_ETCD_URL") as raised:
        store.root(tmp_path / "home")
    assert "\n" not in str(raised.value)
