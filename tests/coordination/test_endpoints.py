"""A comma list of endpoints of one etcd: who is asked, and that nothing is asked twice."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from urllib3.exceptions import MaxRetryError, NewConnectionError, ProtocolError

from penstock.errors import CoordinationUnavailable
from penstock.leases.coordination import etcd_endpoints, open_registry
from penstock.leases.coordination.etcd_endpoints import Endpoints, endpoints_of

NOT_REACHED = requests.ConnectionError(
    MaxRetryError(None, "/v3", NewConnectionError(None, "refused"))  # type: ignore[arg-type]
)
CUT_OFF = requests.ConnectionError(ProtocolError("the connection was cut off"))


@pytest.fixture
def nobody() -> Iterator[str]:
    """A place where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_the_list_is_read() -> None:
    assert endpoints_of("etcd://one,two:2380,[::1]:2381?prefix=a") == [
        "http://one:2379",
        "http://two:2380",
        "http://[::1]:2381",
    ]
    assert endpoints_of("etcds://one") == ["https://one:2379"]


def test_one_that_is_away_is_passed_over(etcd_url: str, nobody: str) -> None:
    """Wherever it stands in the list."""
    there = urlsplit(etcd_url).netloc
    for number, places in enumerate((f"{nobody},{there}", f"{there},{nobody}")):
        registry = open_registry(f"etcd://{places}", f"endpoints {number}", prefix=nobody)
        registry.initialize({7: 0})
        registry.register("ann")
        lease = registry.claim(7, "ann", 0)
        assert lease is not None
        registry.update_position(7, "ann", 5, lease.lease_epoch)
        registry.renew("ann")
        assert registry.position(7) == 5
        registry.deregister("ann")
        registry.close()


def test_all_are_away(nobody: str) -> None:
    with pytest.raises(CoordinationUnavailable, match=nobody):
        open_registry(f"etcd://{nobody},{nobody}", "tests")


class Members:
    """Two members; what each does with the next requests."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def post(self, url: str, **_: Any) -> Any:
        place = urlsplit(url).hostname or ""
        self.asked.append(place)
        answer = self.answers[place].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(status_code=answer)


def endpoints(members: Members) -> Endpoints:
    return Endpoints(members, "http://one:1", ["http://one:1", "http://two:2"])


def test_what_may_have_arrived_is_not_asked_again() -> None:
    """The caller is told; its next request goes to the other member."""
    members = Members(one=[CUT_OFF], two=[200])
    asked = endpoints(members)
    with pytest.raises(requests.ConnectionError):
        asked.post("http://one:1/v3/kv/txn")
    assert members.asked == ["one"]
    assert asked.post("http://one:1/v3/kv/txn").status_code == 200
    assert members.asked == ["one", "two"]


def test_without_that_guard_it_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_endpoints, "_was_never_sent", lambda _: True)
    members = Members(one=[CUT_OFF], two=[200])
    assert endpoints(members).post("http://one:1/v3/kv/txn").status_code == 200
    assert members.asked == ["one", "two"]


def test_what_never_arrived_is_asked_of_the_next() -> None:
    members = Members(one=[NOT_REACHED], two=[200, 200])
    asked = endpoints(members)
    assert asked.post("http://one:1/v3/kv/txn").status_code == 200
    assert asked.post("http://one:1/v3/kv/txn").status_code == 200
    assert members.asked == ["one", "two", "two"]


def test_a_member_without_a_leader_is_not_asked_next() -> None:
    members = Members(one=[503], two=[200])
    asked = endpoints(members)
    assert asked.post("http://one:1/v3/kv/txn").status_code == 503
    assert asked.post("http://one:1/v3/kv/txn").status_code == 200
