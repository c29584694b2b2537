"""Names for Dagster: allowed, readable, and never the same for two different names."""

from __future__ import annotations

import re

import dagster as dg

from dagster_project import naming
from penstock.dagster.keys import HOUSE

ALIKE = [
    "a/b", "a-b", "a_b", "a b", "A/b", "a/B", "a//b", "a/b/", "ä/b", "a.b", "a/b\u200b", "\uff41/b",
    "a/b_f0ffdba3", "x" * 500, "x" * 499 + "y", "账户/事件", "账户/事", "🏦/🏦", "🏦/💶",
    "a/" + "-" * 300,
]  # fmt: skip


def test_names_that_look_alike_stay_apart() -> None:
    """Guard: naming._free, which looks at the names that are taken."""
    slugs = naming.slugs([*ALIKE, *ALIKE])
    assert len(set(slugs.values())) == len(ALIKE)
    assert all(re.fullmatch(r"[a-z0-9_]{1,69}", each) for each in slugs.values())


def test_names_are_readable_and_the_oldest_keeps_its_name() -> None:
    assert naming.slugs(["bank/accounts"]) == {"bank/accounts": "bank_accounts"}
    first, second = naming.slugs(["bank/accounts", "bank-accounts"]).values()
    assert first == "bank_accounts"
    assert re.fullmatch(r"bank_accounts_[0-9a-f]{8}", second)
    assert naming.slugs(["relay"], reserved=["relay"]) != {"relay": "relay"}


def test_a_name_that_is_written_like_a_hashed_one_gets_another() -> None:
    hashed = naming.slugs(["a/b", "a-b"])["a-b"]
    found = naming.slugs(["a/b", hashed, "a-b"])
    assert found[hashed] == hashed and found["a-b"] != hashed
    assert len(set(found.values())) == 3


def test_dagster_takes_every_name() -> None:
    for name, slug in naming.slugs(ALIKE).items():
        key = dg.AssetKey([HOUSE, slug, "log"])
        dg.AssetsDefinition(specs=[dg.AssetSpec(key, group_name=naming.group_of(name))])
    assert naming.group_of("shop/eu/orders") == "shop/eu"
