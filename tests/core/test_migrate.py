from __future__ import annotations

from penstock.migrate import check, migrate, status


def test_it_works(empty_database_url: str) -> None:
    first = migrate(empty_database_url)
    assert first.applied
    assert migrate(empty_database_url).applied == ()
    assert check(empty_database_url) == []
    assert {line.state for line in status(empty_database_url)} == {"applied"}
