"""The walls between tenants that only PostgreSQL needs.

What all engines have is in :mod:`tests.contract.topics.test_walls`.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

import penstock
from penstock.errors import TopicNotFound
from penstock.publishing import known_topics
from tests.guards import without_guard
from tests.kit.tenants import (
    OPEN,
    OURS,
    THEIRS,
    Tenants,
    bulk,
)


def test_copy_finds_no_hidden_topic(tenants: Tenants, us: str, they: str) -> None:
    """Guard: has_right in publishable_topics."""
    with tenants.as_login(us) as own:
        bulk(own, OURS)
        known_topics.clear()
        with pytest.raises(TopicNotFound):
            bulk(own, THEIRS)


def test_a_right_outlives_the_login_and_keeps_the_others_out(
    tenants: Tenants, us: str, they: str
) -> None:
    tenants.owner.execute(sql.SQL("DROP OWNED BY {0}").format(sql.Identifier(they)))
    tenants.owner.execute(sql.SQL("DROP ROLE {0}").format(sql.Identifier(they)))
    tenants.made.remove(they)
    with tenants.as_login(us) as own, pytest.raises(TopicNotFound):
        penstock.fetch(own, THEIRS, 0, 1)


def test_a_role_called_operator_passes_only_where_it_was_installed(
    tenants: Tenants, us: str, they: str
) -> None:
    """Guard: USAGE on the schema; roles are the whole cluster's, and so is who may make them."""
    tenants.owner.execute("REVOKE USAGE ON SCHEMA penstock FROM penstock_operator")
    login = tenants.login("operator consumer")
    with tenants.as_login(login) as outsider, pytest.raises(TopicNotFound):
        penstock.fetch(outsider, THEIRS, 0, 1)


def test_the_session_counts_not_the_role_that_it_has_set(
    tenants: Tenants, us: str, they: str
) -> None:
    """session_user: SET ROLE neither hides one's own topics nor shows the others'."""
    group = tenants.role()
    penstock.grant_namespace(tenants.owner, "theirs", group, "read")
    with tenants.as_login(us) as own:
        own.execute("SET ROLE penstock_consumer")
        assert penstock.fetch(own, OURS, 0, 1)
        with pytest.raises(TopicNotFound):
            penstock.fetch(own, THEIRS, 0, 1)
        own.execute("RESET ROLE")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            own.execute("SET ROLE penstock_operator")
        tenants.owner.execute(
            sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), sql.Identifier(us))
        )
        assert penstock.fetch(own, THEIRS, 0, 1)


def test_an_open_topic_asks_for_no_right(tenants: Tenants, us: str, they: str) -> None:
    """Guard: restricted stands before has_right; a topic without rights must not pay for them."""
    without_guard(
        tenants.owner, "login_has_right", "RETURN count(*) = 0 OR", "RETURN 1 / count(*) / 0 = 0 OR"
    )
    with tenants.as_login(us) as own:
        penstock.publish(own, OPEN, b"x")
        assert penstock.fetch(own, OPEN, 0, 1)
        with pytest.raises(psycopg.errors.DivisionByZero):
            penstock.fetch(own, OURS, 0, 1)
