"""Two tenants: neither erases the other's events, nor goes on with the other's erasure."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from ops.erase import list_erasures
from penstock import database
from penstock.errors import InvalidArgument, TopicNotFound
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.contract.tenants import THEIRS, Tenants, as_login, tenant
from tests.contract.wall_calls import EPOCHS
from tests.kit.proof import proves

pytestmark = pytest.mark.usefixtures("neighbours")

NO_WALL: Guard = {
    "postgres": ("hold_erasure", "OR NOT sees_topic(held.topic_id, 'operate')", ""),
    "mysql": ("hold_erasure", "OR NOT is_seen", ""),
}


def _theirs(tenants: Tenants) -> str:
    """Their erasure, which is open."""
    EPOCHS["begin_erasure"](tenants.owner, THEIRS)
    (found,) = list_erasures(tenants.owner, THEIRS)
    return found.erasure


def _steps(own: Any, erasure: str) -> None:
    """Each step; all are refused."""
    steps: dict[str, dict[str, Any]] = {
        "erase_events": {
            "partition": 0, "sequences": [1], "old_checksum": None, "checksum": None,
        },
        "erase_letters": {"key": "k", "max_rows": 1},
        "finish_erasure": {},
    }  # fmt: skip
    for name, binds in steps.items():
        with pytest.raises(InvalidArgument, match="no open erasure"):
            database.call(own, name, erasure=erasure, **binds)
    with pytest.raises(InvalidArgument, match="there is no"):
        database.call(own, "copies_of_erasure", erasure=erasure, key="k", max_rows=1)


@proves("what is held is not erased", guard="the right to operate")
def test_an_erasure_is_its_topic_s_operators(db: ContractDatabase, tenants: Tenants) -> None:
    """Guard: the right in the fence. Mutant: any operator goes on with any erasure."""
    login = tenant(tenants, "ours")
    tenant(tenants, "theirs")
    erasure = _theirs(tenants)
    with as_login(tenants, login) as own:
        assert list_erasures(own) == []
        _steps(own, erasure)
    (untouched,) = list_erasures(tenants.owner)
    assert (untouched.events, untouched.finished_at) == (0, None)
    without(db, NO_WALL)
    with as_login(tenants, login) as own:
        database.call(own, "finish_erasure", erasure=erasure)


def test_who_may_only_read_sees_an_erasure_and_makes_none(tenants: Tenants) -> None:
    login = tenants.tenant()
    penstock.grant_namespace(tenants.owner, "theirs", login, "read")
    erasure = _theirs(tenants)
    with as_login(tenants, login) as own:
        assert list_erasures(own, THEIRS)[0].erasure == erasure
        for name in ("begin_erasure", "find_erasable"):
            with pytest.raises(TopicNotFound):
                EPOCHS[name](own, THEIRS)
        _steps(own, erasure)
