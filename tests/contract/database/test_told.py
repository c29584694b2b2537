"""The error of a refused login shows neither the user nor the password of the address."""

from __future__ import annotations

import pytest

from penstock import database
from penstock.database import address
from penstock.errors import DatabaseUnavailable
from tests.contract.databases import ContractDatabase
from tests.kit.proof import proves

SECRET = "s3cret"


@proves("no secret is told")
@pytest.mark.parametrize("part", ["user", "database"])
def test_a_refused_login_tells_no_user_and_no_password(db: ContractDatabase, part: str) -> None:
    """Guard: address.without_secrets; the name of the database is told, with what to do."""
    at = address.read(db.url)
    if part == "user":
        url = f"{at.scheme}://{SECRET}user:{SECRET}@{at.hosts}{at.database}?connect_timeout=9"
    else:
        login = f"{at.user}:{at.password}@" if at.password else f"{at.user}@"
        url = f"{at.scheme}://{login if at.user else ''}{at.hosts}/{SECRET}none"
    with pytest.raises(DatabaseUnavailable) as caught:
        database.connect(url)
    said = f"{caught.value} {caught.value!r}"
    assert (SECRET in said) == (part == "database")
    assert f"{SECRET}user" not in said
    assert "check the" in (caught.value.hint or "")
