"""A policy file owns what it has set, and a database follows one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.policies import file as policy_file, policy
from ops.policies.file import Policies
from penstock import subscriptions
from penstock.database import call
from penstock.errors import InvalidArgument
from penstock.subscriptions import policies
from penstock.topics import names
from tests.contract.databases import ContractDatabase
from tests.contract.stream_kit import Guard, without
from tests.kit.proof import proves

TOPIC = "shop/orders"
TEXT = f"""
targets: {{local: archive}}
global: {{retry: {{max_attempts: 5}}}}
topics:
  {TOPIC}: {{archive: [local], retention: {{minimum_age: 1h}}}}
"""
#: What somebody else's file says: of the same topic, and of a relay.
OTHER = f"""
topics:
  {TOPIC}: {{archive: none, retention: {{minimum_age: 0s}}, lease: {{max_consumers: 8}}}}
relays:
  files: {{topic: {TOPIC}, sink: "jsonl:out"}}
"""
IS_TAKEN: Guard = {
    "postgres": ("store_policy", "AND settings <> '{}')", "AND false)"),
    "mysql": ("store_policy", "AND JSON_LENGTH(given) > 0", "AND FALSE"),
}


def the_file(text: str, place: str = "/srv/penstock/policies.yaml") -> Policies:
    return policy_file.parse(text, Path(place))


def another(text: str) -> Policies:
    return the_file(text, "/opt/elsewhere/policies.yaml")


def filled(db: ContractDatabase) -> Any:
    """A database that follows a file."""
    own = db.connect()
    names.create_topic(own, TOPIC, 1, create_namespaces=True)
    assert len(policy.apply(own, the_file(TEXT))) == 2
    return own


def in_force(connection: Any) -> tuple[list[tuple[str, Any]], list[tuple[int, str]]]:
    """The settings and the retention, with who set them."""
    settings = [(each.origin, each.settings) for each in policies.list_policies(connection)]
    kept = policy.retention_in_force(connection).values()
    return settings, [(each.minimum_age_seconds, each.origin) for each in kept]


@proves("a policy file owns what it has set")
def test_another_file_shows_drift_and_changes_nothing(db: ContractDatabase) -> None:
    """The history names the file.  Guard: _Claim; without it the second file takes all back."""
    own = filled(db)
    before = in_force(own)
    assert before == (
        [("file /srv/penstock/policies.yaml", {"max_attempts": 5})],
        [(3_600, "file /srv/penstock/policies.yaml")],
    )
    for wanted in (another(""), another(OTHER)):
        found = policy.drift(own, wanted)
        assert {each.setting for each in found} >= {"retry", "retention"}
        assert not any(each.mendable for each in found)
        assert policy.follows(own, wanted) is False
        assert policy.apply(own, wanted) == []
        assert in_force(own) == before
        assert subscriptions.lag(own) == []
    assert policy.drift(own, the_file(TEXT)) == []
    history = policies.policy_history(own, "retry")
    assert [each.origin for each in history] == ["file /srv/penstock/policies.yaml"]


RELAYS = f"""
relays:
  {{name}}: {{{{topic: {TOPIC}, sink: "jsonl:out"}}}}
"""


@proves("a policy file owns what it has set")
def test_the_relays_of_a_file_are_its_own_too(
    db: ContractDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two files that set nothing else, the second changes nothing.  Mutant: nobody owns them."""
    own = db.connect()
    names.create_topic(own, TOPIC, 1, create_namespaces=True)
    first, second = the_file(RELAYS.format(name="a")), another(RELAYS.format(name="b"))
    assert policy.follows(own, first) and policy.follows(own, second)
    assert len(policy.apply(own, first)) == 1
    assert policy.apply(own, second) == [] != policy.drift(own, second)
    assert policy.other_files(own, second) == ["/srv/penstock/policies.yaml"]
    assert policy.follows(own, first) and not policy.follows(own, second)
    assert [each.subscription for each in subscriptions.lag(own)] == ["a"]
    with monkeypatch.context() as mutant:
        mutant.setattr(policies, "relays_claimed_by", lambda _: None)
        assert policy.follows(own, second)
    assert len(policy.apply(own, second, take_over=True)) == 1
    assert policy.follows(own, second) and not policy.follows(own, first)
    assert policy.apply(own, first) == []
    policy.apply(own, another("targets: {local: archive}"))  # its relays have left it
    assert policies.relays_claimed_by(own) is None
    assert policy.follows(own, first)


@proves("a policy file owns what it has set")
def test_a_file_that_is_told_to_takes_over_all_that_files_have_set(db: ContractDatabase) -> None:
    """What a hand has set stays.  The file of before changes nothing from then on."""
    own = filled(db)
    policies.set_policy(own, "metrics", {"refresh_seconds": 2})
    changed = policy.apply(own, another(OTHER), take_over=True)
    assert {each.setting for each in changed} == {"retry", "retention", "lease", "relay files"}
    settings, kept = in_force(own)
    assert sorted(settings, key=str) == [
        ("file /opt/elsewhere/policies.yaml", {"max_consumers": 8}),
        ("hand", {"refresh_seconds": 2}),
    ]
    assert kept == [(0, "file /opt/elsewhere/policies.yaml")]
    assert [each.setting for each in policy.drift(own, another(OTHER))] == ["metrics"]
    assert policy.apply(own, the_file(TEXT)) == []
    history = policies.policy_history(own, "retry")
    assert [each.origin for each in history] == [
        "file /srv/penstock/policies.yaml",
        "file /opt/elsewhere/policies.yaml",
    ]


def test_a_file_owns_what_it_names_also_where_the_value_was_there(db: ContractDatabase) -> None:
    """Set by hand, or by a version before files had names: the file owns it once it was applied.

    So what is taken out of the file is taken back.
    """
    own = db.connect()
    names.create_topic(own, TOPIC, 1, create_namespaces=True)
    policies.set_policy(own, "retry", {"max_attempts": 5}, origin="file")
    call(own, "set_retention", topic=TOPIC, minimum_age_seconds=3_600, copies=1, origin="hand",
         max_bytes=None, targets=["local"])  # fmt: skip
    assert {each.origin for each in policy.drift(own, the_file(TEXT))} == {"hand", "file"}
    assert len(policy.apply(own, the_file(TEXT))) == 2
    assert policy.drift(own, the_file(TEXT)) == policy.apply(own, the_file(TEXT)) == []
    history = policies.policy_history(own, "retry")
    assert [each.origin for each in history] == ["file", "file /srv/penstock/policies.yaml"]
    assert len(policy.apply(own, the_file("targets: {local: archive}"))) == 2
    assert in_force(own) == ([], [])


def test_what_a_file_without_a_name_has_set_is_not_another_file_s(db: ContractDatabase) -> None:
    """A version before this one has set it: whose it is nobody can say, so it is kept."""
    own = db.connect()
    policies.set_policy(own, "retry", {"max_attempts": 5}, origin="file")
    for wanted in (the_file(""), the_file("global: {retry: {max_attempts: 6}}")):
        assert [each.mendable for each in policy.drift(own, wanted)] == [False]
        assert policy.apply(own, wanted) == []
    assert len(policy.apply(own, the_file(""), take_over=True)) == 1


@proves("a policy file owns what it has set", guard="the value that was there already")
def test_without_the_guard_a_value_that_was_there_stays_a_hand_s(db: ContractDatabase) -> None:
    """Mutant: what the file names is drift for ever, and stays when it leaves the file."""
    own = db.connect()
    policies.set_policy(own, "retry", {"max_attempts": 5})
    without(db, IS_TAKEN)
    wanted = the_file("global: {retry: {max_attempts: 5}}")
    assert policy.apply(own, wanted) == policy.apply(own, wanted) != []
    assert policy.apply(own, the_file("")) == []


def test_a_file_with_a_name_is_the_same_at_every_place(db: ContractDatabase) -> None:
    own = filled(db)
    named = "name: shop-platform\n" + TEXT
    policy.apply(own, the_file(named), take_over=True)
    assert policies.policy_history(own, "retry")[-1].origin == "file shop-platform"
    assert policy.drift(own, another(named)) == []
    assert [each.mendable for each in policy.drift(own, another("name: shop-platform"))] == [
        True,
        True,
    ]


def test_a_name_that_is_too_long_is_no_origin(db: ContractDatabase) -> None:
    own = db.connect()
    for origin in ("file ", "file " + "x" * 501, "files", "File x"):
        with pytest.raises(InvalidArgument, match="origin cannot be"):
            policies.set_policy(own, "retry", {"max_attempts": 5}, origin=origin)
    policies.set_policy(own, "retry", {"max_attempts": 5}, origin="file " + "é" * 500)
    found = policies.policy_of(own)
    assert {each.origin for each in found} == {None, "file " + "é" * 500}
