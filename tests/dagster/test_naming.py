"""Names for Dagster: allowed, readable, and the same whatever else there is."""

from __future__ import annotations

import re

import dagster as dg
import pytest

from dagster_project import naming
from penstock.dagster.keys import HOUSE, relay_slug, topic_key, topic_slug
from tests.kit.proof import proves

ALIKE = [
    "a/b", "a-b", "a_b", "a b", "A/b", "a/B", "a//b", "a/b/", "ä/b", "a.b", "a/b\u200b", "\uff41/b",
    "a/b_f0ffdba3", "x" * 500, "x" * 499 + "y", "账户/事件", "账户/事", "🏦/🏦", "🏦/💶",
    "a/" + "-" * 300, "a__b", "a___b", "a____b", "a--b", "_a/b", "a/b\n",
]  # fmt: skip
#: They read alike and their hashes begin alike: found among a million.
CRAFTED = ("x/tWEntYletterSareHere", "x/TwEntyLetteRSaREhEre")


@proves("a key never changes its topic")
def test_names_that_look_alike_stay_apart() -> None:
    """Guard: keys._plain, which writes a name without a hash only if no other is written so."""
    for slug in (topic_slug, relay_slug):
        slugs = naming.slugs([*ALIKE, *ALIKE], slug)
        assert len(set(slugs.values())) == len(ALIKE)
        assert all(re.fullmatch(r"[a-z0-9_]{1,69}", each) for each in slugs.values())


@pytest.mark.parametrize(
    ("topic", "slug"),
    [
        ("bank/accounts", "bank_accounts"),
        ("shop/eu/orders", "shop_eu_orders"),
        ("shop/order_items", "shop_order___items"),
        ("shop/order-items", "shop_order____items"),
        ("shop/Orders", "shop_orders_00000000"),
        ("shop/Größe", "shop_gr_e_00000000"),
        ("logs/20261123", "logs_20261123_00000000"),  # it is written as a name with a hash is
    ],
)
def test_usual_names_have_no_hash(topic: str, slug: str) -> None:
    """Where one is expected, any will do."""
    assert re.fullmatch(slug.replace("00000000", "[0-9a-f]{8}"), topic_slug(topic))


def test_a_relay_is_usually_written_with_a_dash() -> None:
    assert relay_slug("bank-file") == "bank_file"
    assert relay_slug("bank_file") == "bank___file"
    assert re.fullmatch(r"bank_file_[0-9a-f]{8}", relay_slug("bank/file"))


def test_a_name_that_is_written_like_a_hashed_one_gets_another() -> None:
    """Guard: keys._LIKE_A_HASH."""
    hashed = topic_slug("shop/Orders")
    for name in (hashed, hashed.replace("_", "/", 1), hashed.replace("_", "/")):
        assert topic_slug(name) != hashed


def test_no_part_of_a_key_has_two_underscores_together() -> None:
    """Two are what joins the parts to the name of an op: a name and its parts are one to one."""
    for name in [*ALIKE, "a_b/c-d", "a-_b/c"]:
        for slug in (topic_slug, relay_slug):
            assert not re.search(r"(?<!_)__(?!_)", slug(name)), name
            assert not re.search(r"^_|_$", slug(name)), name


def test_two_names_that_were_made_to_have_one_hash_get_a_longer_one() -> None:
    """Whoever may create topics must not keep the definitions from loading.

    Guard: naming.slugs, which counts.
    """
    first, second = CRAFTED
    assert topic_slug(first) == topic_slug(second)
    found = naming.slugs([first, "shop/orders", second], topic_slug)
    assert len(set(found.values())) == 3
    assert found["shop/orders"] == "shop_orders"
    assert all(re.search(r"_[0-9a-f]{64}$", found[each]) for each in CRAFTED)


def test_dagster_takes_every_name() -> None:
    for name, slug in naming.slugs(ALIKE, topic_slug).items():
        key = dg.AssetKey([HOUSE, slug, "log"])
        dg.AssetsDefinition(specs=[dg.AssetSpec(key, group_name=naming.group_of(name))])


def test_a_topic_has_a_group_of_its_own_where_its_namespace_has_several() -> None:
    """So no edge of the graph passes another topic's nodes."""
    found = naming.groups(["shop/eu/orders", "bank/accounts", "bank/transfers", "a b/c/d"])
    assert found == {
        "shop/eu/orders": "shop/eu",
        "bank/accounts": "bank/accounts",
        "bank/transfers": "bank/transfers",
        "a b/c/d": "a_b/c",
    }


def test_the_last_part_of_a_key_has_the_topic_s_name() -> None:
    """Dagster's graph shows nothing else of a key; the part before keeps two topics apart.

    Guard: node_name; without it the nodes of all topics have the same six names.
    """
    shown = {name: topic_key(name, "log").path[-1] for name in ALIKE if "/" in name}
    assert shown["a/b"] == "b_log" and shown["账户/事件"] == "log"
    keys = {topic_key(name, "log") for name in shown}
    assert len(keys) == len(shown)
    for each in keys:
        dg.AssetsDefinition(specs=[dg.AssetSpec(each)])
        assert "__" not in each.path[-1]
    assert topic_key("shop/order_items", "archive", database="eu").path == [
        "penstock", "eu", "shop_order___items", "order_items_archive",
    ]  # fmt: skip


def test_a_long_tag_is_cut_and_stays_its_own() -> None:
    """Guard: naming.tag. Cut alone, the work of two relays would be one."""
    short, first, second = "relay-shop_file", "relay-" + "x" * 60 + "a", "relay-" + "x" * 60 + "b"
    assert naming.tag(short) == short
    assert naming.tag(first) != naming.tag(second)
    assert {len(naming.tag(each)) for each in (first, second)} == {63}
