"""Names for Dagster: allowed, readable, and never the same for two different names."""

from __future__ import annotations

import re

import dagster as dg
import pytest

from dagster_project import naming
from penstock.errors import ConfigurationError

ALIKE = [
    "a/b", "a-b", "a_b", "a b", "A/b", "a/B", "a//b", "a/b/", "ä/b", "a.b", "a/b\u200b", "\uff41/b",
    "a/b_f0ffdba3", "x" * 500, "x" * 499 + "y", "账户/事件", "账户/事", "🏦/🏦", "🏦/💶",
    "a/" + "-" * 300,
]  # fmt: skip


def test_names_that_look_alike_stay_apart() -> None:
    slugs = [naming.slug(name) for name in ALIKE]
    assert len(set(slugs)) == len(ALIKE)
    assert len({each.lower() for each in slugs}) == len(ALIKE)
    assert all(re.fullmatch(r"[a-z0-9_]{8,49}", each) for each in slugs)


def test_a_collision_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    naming.require_distinct([*ALIKE, *ALIKE])
    monkeypatch.setattr(naming, "slug", lambda name: "same")
    with pytest.raises(ConfigurationError, match="have the same name in Dagster"):
        naming.require_distinct(["a/b", "a/c"])


def test_keys_are_readable_and_dagster_takes_them() -> None:
    assert naming.topic_key("bank/accounts", "log").to_user_string() == "bank_accounts_f0ffdba3/log"
    for name in ALIKE:
        key = naming.topic_key(name, "log")
        dg.AssetsDefinition(specs=[dg.AssetSpec(key, group_name=naming.group_of(name))])
        dg.define_asset_job(f"archive_{naming.slug(name)}")


def test_log_epochs_as_partition_keys() -> None:
    assert naming.epoch_name((3, 12)) == "p00003-e000000012"
    assert naming.epoch_of("p65535-e2147483647"[:7] + "e214748364") == (65535, 214748364)
    for wrong in ("", "p3-e12", "p00003-e000000012 ", "2026-01-01"):
        with pytest.raises(ConfigurationError, match="names no log epoch"):
            naming.epoch_of(wrong)
