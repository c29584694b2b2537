"""The policy file: what it may say, and what is refused with its place in the file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ops.archive.placement import Placement
from ops.policies import file as policy_file, values
from ops.policies.settings import (
    HealthLimits,
    RelayPolicy,
    RetentionPolicy,
    SealPolicy,
    TopicPolicy,
)
from penstock.errors import ConfigurationError
from tests.kit.placements import on_each
from tests.kit.proof import proves

ROOT = Path(__file__).resolve().parents[2]

#: The start of a file whose topic has targets to name.
ABC = "targets: {a: x, b: y, c: z}\ntopics: {a/b: {archive"

FULL = """
targets: {near: archive, far: file:///mnt/far, given: "${FAR_AWAY}"}
topics:
  shop/orders:
    owner: team:shop
    seal: {max_events: 500, max_age: 15m}
    archive: [near, far]
    retention: {minimum_age: 7d, copies: 2, max_bytes: 200GiB}
  shop/Zürich:
  shop/retried: {retry: {jitter: 0}}
relays:
  files: {topic: shop/orders, sink: jsonl:out}
  broker: {topic: shop/orders, subscription: to-pulsar, sink: "${SINK}"}
global: {heartbeat: {heartbeat_seconds: 0.5, lease_seconds: 5}, metrics: {}}
namespaces: {shop/eu: {retry: {max_attempts: 3, exhausted: park_key}}}
subscriptions: {billing: {lease: {max_consumers: 16}}, unset: }
limits: {unsequenced: 5s, relay_lag: 2m, consumer_lag: 90}
"""


def parse(text: str) -> policy_file.Policies:
    """The policies of a file that lies in /srv/penstock."""
    return policy_file.parse(text, Path("/srv/penstock/policies.yaml"))


def _relay(sink: str) -> str:
    return f"relays: {{out: {{topic: a/b, sink: '{sink}'}}}}"


def test_an_object_store_gets_its_secrets_from_the_environment() -> None:
    """They are read when the target is used, and are in no text that shows it."""
    found = parse(
        "targets: {cold: {uri: 's3://bucket/x', options: {aws_region: eu-1, "
        "aws_access_key_id: '${ID}', aws_secret_access_key: '${KEY}'}}}"
    )
    with pytest.raises(ConfigurationError, match="is taken from ID, which is not set"):
        found.target("cold", {"KEY": "hunter2"})
    target = found.target("cold", {"ID": "me", "KEY": "hunter2"})
    assert target.uri == "s3://bucket/x"
    assert dict(target.options) == {
        "aws_region": "eu-1",
        "aws_access_key_id": "me",
        "aws_secret_access_key": "hunter2",
    }
    for shown in (repr(target), repr(found)):
        assert "hunter2" not in shown


@proves("no secret is shown by Dagster")
@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("targets: {x: {uri: 's3://b', options: {aws_secret_access_key: hunter2}}}", "${NAME}"),
        (
            "targets: {x: {uri: 's3://b', options: {aws_endpoint_url: 'http://u:hunter2@h'}}}",
            "${NAME}",
        ),
        ("targets: {x: 's3://KEY:hunter2@bucket/p'}", "aws_access_key_id: ${NAME}"),
        ("targets: {x: 's3://KEY:hun/hunter2@bucket/p'}", "aws_access_key_id: ${NAME}"),
        ("targets: {x: 's3://bucket/p?secret=hunter2'}", "aws_access_key_id: ${NAME}"),
        (_relay("pulsar://u:hunter2@h/a/b?admin=http://h"), "PENSTOCK_PULSAR_TOKEN"),
        (_relay("pulsar://h/a/b?admin=http://u:hunter2@h"), "PENSTOCK_PULSAR_TOKEN"),
        (_relay("pulsar://h/a/b?admin=http://h&token=hunter2"), "PENSTOCK_PULSAR_TOKEN"),
        (_relay("kafka://u:hunter2@h:9092/p"), "PENSTOCK_KAFKA_PASSWORD"),
        (_relay("kafka://h:9092/p?sasl.password=hunter2"), "PENSTOCK_KAFKA_PASSWORD"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(text: str, way_out: str) -> None:
    """Places and sinks are shown by Dagster.  The error says how else the secret is given."""
    with pytest.raises(ConfigurationError) as caught:
        parse(text)
    assert "hunter2" not in str(caught.value)
    assert way_out in caught.value.hint


def test_a_secret_in_a_variable_is_refused_when_it_is_used() -> None:
    """A place that is taken from the environment is recorded and shown as well."""
    found = parse("targets: {x: '${PLACE}'}")
    with pytest.raises(ConfigurationError, match="has a login") as caught:
        found.target("x", {"PLACE": "s3://KEY:hunter2@bucket/p"})
    assert "hunter2" not in str(caught.value)


def test_everything_that_a_file_may_say() -> None:
    found = parse(FULL)
    assert found.topics == {
        "shop/orders": TopicPolicy(
            "shop/orders",
            "team:shop",
            SealPolicy(500, 900),
            ("near", "far"),
            RetentionPolicy(604_800, 2, 200 * 2**30),
            on_each("near", "far"),
        ),
        "shop/Zürich": TopicPolicy("shop/Zürich"),
        "shop/retried": TopicPolicy("shop/retried"),
    }
    assert found.relays["broker"] == RelayPolicy("broker", "shop/orders", "to-pulsar", "${SINK}")
    assert found.relays["files"].subscription == "files"
    assert found.limits == HealthLimits(5, 120, 90)
    assert found.settings == {
        ("global", "", "heartbeat"): {"heartbeat_seconds": 0.5, "lease_seconds": 5},
        ("namespace", "shop/eu", "retry"): {"max_attempts": 3, "exhausted": "park_key"},
        ("topic", "shop/retried", "retry"): {"jitter": 0},
        ("subscription", "billing", "lease"): {"max_consumers": 16},
    }


def test_what_is_not_said_keeps_everything() -> None:
    found = parse("")
    assert found.of_topic("any/topic") == TopicPolicy("any/topic")
    assert found.of_topic("any/topic").retention is None


def test_places_are_absolute_and_taken_from_the_environment() -> None:
    found = parse(FULL)
    environ = {"FAR_AWAY": "/mnt/given", "SINK": "pulsar://host:6650/a/b?admin=http://host:8080"}
    assert found.target("near").uri == "/srv/penstock/archive"
    assert found.target("far").uri == "file:///mnt/far"
    assert found.target("given", environ).uri == "/mnt/given"
    assert found.sink_address(found.relays["files"]) == "jsonl:/srv/penstock/out"
    assert found.sink_address(found.relays["broker"], environ) == environ["SINK"]
    with pytest.raises(ConfigurationError, match=r"relays\.broker\.sink is taken"):
        found.sink_address(found.relays["broker"], {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topic: {}", "the file has the unknown setting 'topic'. known: targets, topics"),
        ("topics: {a/b: {retention: {min_age: 1d}}}", "topics.a/b.retention has the unknown"),
        ("topics: {a/b: {retention: {copies: 1}}}", "topics.a/b.retention has no minimum_age"),
        ("topics: {a/b: {sela: {}}}", "topics.a/b has the unknown setting 'sela'"),
        ("topics: {orders: {}}", "topics.orders: the topic 'orders' has no namespace"),
        ("topics: {a/b: {archive: [x]}}", "names the target 'x', which is not among the targets"),
        ("topics: {a/b: {archive: x}}", "topics.a/b.archive is not a list"),
        (
            "targets: {x: y}\ntopics: {a/b: {archive: [x, x]}}",
            "topics.a/b.archive names a target twice",
        ),
        (
            "topics: {a/b: {retention: {minimum_age: 1d}}}",
            "wants 1 copies, but topics.a/b.archive has 0 targets: nothing could ever be removed",
        ),
        (
            "topics: {a/b: {archive: none, retention: {minimum_age: 1d, copies: 1}}}",
            "topics.a/b.retention asks for copies of a topic with archive: none",
        ),
        ("topics: {a/b: {seal: {max_events: 0}}}", "max_events is 0. write a whole number from 1"),
        ("topics: {a/b: {seal: {max_events: true}}}", "max_events is True"),
        ("topics: {a/b: {seal: {max_age: 5 weeks}}}", "max_age is '5 weeks'. write 90s, 15m"),
        ("topics: {a/b: {seal: {max_age: -1}}}", "max_age is -1"),
        (
            "topics: {a/b: {seal: {max_age: 999999999999d}}}",
            "topics.a/b.seal.max_age is '999999999999d': that is too long. write at most 36500d",
        ),
        ("limits: {relay_lag: 3153600001}", "limits.relay_lag is 3153600001: that is too long"),
        ("topics: {a/b: {owner: me}}", "topics.a/b.owner is 'me'. write team:name"),
        # Dagster takes no such owner, and would load nothing.
        ('topics: {a/b: {owner: "o\'brien@shop.com"}}', 'owner is "o\'brien@shop.com". write team'),
        ("topics: {a/b: {owner: a@b_c.com}}", "topics.a/b.owner is 'a@b_c.com'. write team:name"),
        ("topics: [a/b]", "topics is not a table"),
        ("relays: {r: {topic: a/b}}", "relays.r has no sink"),
        ("relays: {r: {topic: a/b, sink: ''}}", "relays.r.sink is ''"),
        (
            "relays: {r: {topic: a/b, sink: x}, s: {topic: c/d, sink: y, subscription: r}}",
            "the relays r and s have the subscription 'r' both",
        ),
        ("targets: {x: 'gs://bucket'}", "the archive target x has the scheme 'gs'"),
        ("targets: {x: {uri: y, options: {aws_region: z}}}", "x is a directory and has options"),
        ("targets: {x: {options: {}}}", "targets.x is None"),
        ("targets: {x: {uri: 's3://b', key: z}}", "targets.x has the unknown setting 'key'"),
        ("targets: {x: {uri: 's3://b', options: {secret: z}}}", "unknown setting 'secret'"),
        (
            "targets: {x: {uri: 's3://b', options: {aws_secret_access_key: hunter2}}}",
            "targets.x.options.aws_secret_access_key is written into the file. write ${NAME}",
        ),
        ("targets: {x: {uri: y, weight: 0}}", "targets.x.weight is 0. write a whole number from 1"),
        (f"{ABC}: {{targets: [a, b], copies: 3}}}}}}", "archive: 3 copies cannot lie on 2 targets"),
        (f"{ABC}: {{targets: [a, b], copies: 0}}}}}}", "archive.copies is 0. write a whole number"),
        (
            f"{ABC}: {{targets: [a, b, c], copies: 2, ack_quorum: 3}}}}}}",
            "topics.a/b.archive: an ack_quorum of 3 cannot be reached with 2 copies",
        ),
        (f"{ABC}: {{targets: [a], ack_quorum: 0}}}}}}", "archive.ack_quorum is 0"),
        (f"{ABC}: {{targets: [a], copy_timeout: 0}}}}}}", "archive: a copy_timeout of 0 s"),
        (f"{ABC}: {{targets: [a], quorum: 1}}}}}}", "archive has the unknown setting 'quorum'"),
        (f"{ABC}: {{copies: 1}}}}}}", "topics.a/b.archive.targets is not a list"),
        (f"{ABC}: {{targets: [a, d]}}}}}}", "names the target 'd', which is not among"),
        (
            f"{ABC}: {{targets: [a, b], copies: 1}}, retention: {{minimum_age: 1, copies: 2}}}}}}",
            "topics.a/b.retention wants 2 copies, but topics.a/b.archive makes 1: nothing could",
        ),
        ("databases: [a]", "databases is not a table"),
        ("databases: {a-b: {url: '${A}'}}", "databases.a-b has a name that is not allowed"),
        ("databases: {a__relay: {url: '${A}'}}", "databases.a__relay has a name that is not allow"),
        ("databases: {a_: {url: '${A}'}}", "databases.a_ has a name that is not allowed"),
        ("databases: {a: {}}", "databases.a.url is missing. write ${NAME}"),
        ("databases: {a: {url: '${A}', targets: {}}}", "databases.a has the unknown setting"),
        ("databases: {a: {url: nonsense}}", "databases.a.url: the address of the database is not"),
        (
            "databases: {a: {url: 'postgresql://me:s3cret@host/db'}}",
            "databases.a.url has a password that is written into the file. write ${NAME}",
        ),
        ("databases: {a: {url: 'host=x password=s3cret'}}", "databases.a.url has a password"),
        (
            "databases: {a: {url: '${A}'}, b: {url: '${A}'}}",
            "databases.b.url is that of another database too",
        ),
        (
            "databases: {a: {url: '${A}', topics: {x/y: {archive: [z]}}}}",
            "databases.a: topics.x/y.archive names the target 'z', which is not among",
        ),
        ("global: {retention: {}}", "global has the unknown setting 'retention'"),
        ("global: {retry: {tries: 3}}", "global.retry: the policy retry has no setting 'tries'"),
        ("namespaces: {a//b: {}}", "namespaces.a//b: "),
        ("namespaces: {a: {retry: {jitter: 2}}}", "namespaces.a.retry: jitter cannot be 2. use a"),
        ("namespaces: {a: {owner: team:x}}", "namespaces.a has the unknown setting 'owner'"),
        (
            "topics: {a/b: {heartbeat: {heartbeat_seconds: 3, lease_seconds: 8}}}",
            "topics.a/b.heartbeat: heartbeat_seconds 3 does not fit lease_seconds 8. lease_seconds",
        ),
        ("topics: {a/b: {retry: {max_attempts: .nan}}}", "max_attempts cannot be nan"),
        ("subscriptions: {s: {lease: 5}}", "subscriptions.s.lease: the settings of the policy"),
        ("subscriptions: {'': {}}", "subscriptions is ''"),
        ("limits: {lag: 5s}", "limits has the unknown setting 'lag'"),
        ("topics: {a/b: {}}\ntopics: {c/d: {}}", "in line 2: the key 'topics' stands twice"),
        ("topics: {a/b: {}, a/b: {}}", "the key 'a/b' stands twice"),
        ("topics: {", "policies.yaml in line 1"),
        ("- a", "the file is not a table"),
        ("topics: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_a_fault_is_refused_and_its_place_named(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
        parse(text)
    assert str(caught.value).startswith("policies.yaml")
    assert "s3cret" not in str(caught.value)


def test_copies_are_placed_by_weight_and_quorum() -> None:
    found = parse(
        "targets: {a: x, b: {uri: y, weight: 3}, c: {uri: z}}\n"
        "topics:\n"
        "  a/b: {archive: {targets: [a, b, c], copies: 2, ack_quorum: 1, copy_timeout: 90s}}\n"
        "  a/c: {archive: {targets: [b, c]}}\n"
        "  a/d: {archive: [a, b]}\n"
        "  a/e: {archive: none}\n"
    )
    assert found.of_topic("a/b").placement == Placement({"a": 1, "b": 3, "c": 1}, 2, 1, 90)
    assert found.of_topic("a/c").placement == Placement({"b": 3, "c": 1}, 2, 2)
    assert found.of_topic("a/d").placement == Placement({"a": 1, "b": 3}, 2, 2)
    assert found.of_topic("a/b").archive == ("a", "b", "c")
    assert found.of_topic("a/e").placement is None


DATABASES = """
targets: {near: archive, cold: "s3://bucket/x", given: "${FAR_AWAY}"}
topics: {shop/orders: {archive: [near]}}
limits: {relay_lag: 2m}
databases:
  eu:
    url: ${EU_URL}
    topics: {shop/orders: {archive: {targets: [near, cold], copies: 1}}}
    relays: {files: {topic: shop/orders, sink: "jsonl:out"}}
    global: {retry: {jitter: 0}}
    limits: {consumer_lag: 9}
  us: {url: "mysql://reader@host/penstock"}
"""


@proves("D10 of many databases")
def test_several_databases_share_targets_each_in_a_folder_of_its_own() -> None:
    """Guard: the folder; a target's marker is one installation's."""
    found = parse(DATABASES)
    assert found.databases == ("eu", "us")
    eu, us = map(found.of_database, found.databases)
    environ = {"EU_URL": "postgresql://me:s3cret@host/db", "FAR_AWAY": "/mnt/given/"}
    assert eu.database_url(environ) == environ["EU_URL"]
    assert us.database_url({}) == "mysql://reader@host/penstock"
    assert found.database_url({"PENSTOCK_DATABASE_URL": "mysql://h/d"}) == "mysql://h/d"
    with pytest.raises(ConfigurationError, match=r"databases\.eu\.url is taken from EU_URL"):
        eu.database_url({})
    places = [
        [each.target(name, environ).uri for each in (found, eu, us)] for name in found.targets
    ]
    assert places == [
        ["/srv/penstock/archive", "/srv/penstock/archive/eu", "/srv/penstock/archive/us"],
        ["s3://bucket/x", "s3://bucket/x/eu", "s3://bucket/x/us"],
        ["/mnt/given", "/mnt/given/eu", "/mnt/given/us"],
    ]
    assert found.of_topic("shop/orders").archive == ("near",)
    assert eu.of_topic("shop/orders").archive == ("near", "cold")
    assert (us.topics, us.relays, us.settings) == ({}, {}, {})
    assert eu.relays["files"].topic == "shop/orders"
    assert eu.settings == {("global", "", "retry"): {"jitter": 0}}
    assert (found.limits, eu.limits) == (HealthLimits(relay_lag=120), HealthLimits(15, 120, 9))
    assert eu.databases == ()
    with pytest.raises(ConfigurationError, match=r"there is no database 'asia'.*has: eu, us"):
        found.of_database("asia")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("postgresql://a:b@Host/db", "postgres://c@host:5432/db?connect_timeout=3", True),
        ("postgresql://a@host/db", "host=host dbname=db password='x y'", True),
        ("postgresql:///db?host=/run/pg", "host=/run/pg dbname=db", True),
        ("postgresql://a@host/db", "postgresql://a@host/other", False),
        ("postgresql://a@host/db", "postgresql://a@host:5433/db", False),
        # A server has one schema of Penstock's.
        ("mysql://a@host/db", "mariadb://b@host:3306/other", True),
        ("mysql://a@host/db", "mysql://a@host:3307/db", False),
        ("mysql://a@host/db", "postgresql://a@host/db", False),
    ],
)
def test_two_variables_of_one_database_are_noticed(one: str, other: str, same: bool) -> None:
    """Guard: checks.require_own. Both are refused: nobody can say whose policies are meant."""
    found = parse("databases: {a: {url: '${A}'}, b: {url: '${B}'}, c: {url: '${C}'}}")
    environ = {"A": one, "B": other}
    for name, beside in (("a", "b"), ("b", "a")):
        member = found.of_database(name)
        if not same:
            assert member.database_url(environ) == environ[name.upper()]
            continue
        said = rf"databases\.{name}\.url and databases\.{beside}\.url lead to the same database"
        with pytest.raises(ConfigurationError, match=said):
            member.database_url(environ)


@proves("one policy holds for a database")
def test_a_database_of_the_file_is_not_that_of_the_environment() -> None:
    """Guard: the environment's address in checks.require_own.

    Without it the file could say two things of one topic, and retention would follow either.
    """
    found = parse("databases: {a: {url: '${A}'}}")
    environ = {"A": "postgresql://a@host/db", "PENSTOCK_DATABASE_URL": "host=host dbname=db"}
    for member in (found, found.of_database("a")):
        with pytest.raises(ConfigurationError, match=r"PENSTOCK_DATABASE_URL.*the same database"):
            member.database_url(environ)
        assert member.database_url(environ | {"A": "postgresql://a@host/other"})
    parts = {"A": environ["A"], "DB_HOST": "host", "DB_NAME": "db"}
    with pytest.raises(ConfigurationError, match="the same database"):
        found.of_database("a").database_url(parts)


def test_two_databases_do_not_send_topics_of_one_name_to_one_sink() -> None:
    """Guard: checks.require_apart.  The sink takes the events of one for those of the other."""
    relay = "relays: {files: {topic: shop/orders, sink: 'jsonl:out%s'}}"
    text = f"{relay}\ndatabases: {{a: {{url: '${{A}}', {relay}}}}}"
    with pytest.raises(ConfigurationError, match=r"relays\.files and databases\.a\.relays\.files"):
        parse(text % ("", ""))
    assert parse(text % ("", "/a")).databases == ("a",)
    # Another Penstock database tells them apart.
    into = text.replace("jsonl:out%s", "penstock+mysql://host/all")
    assert parse(into).of_database("a").relays["files"].sink == "penstock+mysql://host/all"


def test_an_address_that_is_none_is_named_by_its_entry() -> None:
    member = parse("databases: {a: {url: '${A}'}}").of_database("a")
    with pytest.raises(ConfigurationError, match=r"databases\.a\.url: the address .* not a URL"):
        member.database_url({"A": "nonsense"})


def test_a_missing_file_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        policy_file.load(tmp_path / "none.yaml")


def test_the_file_of_this_checkout_is_right() -> None:
    """It is a beginning: of other topics than the canary's it says nothing, and it relays nothing.

    Whoever starts Dagster on a database of their own gets nothing that they have not asked for.
    """
    found = policy_file.load(policy_file.default_path({}))
    assert found.target("local").root.is_absolute()
    assert ([*found.topics], found.relays, found.settings) == ([found.canary], {}, {})
    assert found.file == str(ROOT / "policies.yaml")


def test_a_file_is_the_one_that_it_says_or_the_one_at_its_place(tmp_path: Path) -> None:
    """Also of each of its databases.  A name that cannot be recorded is refused."""
    beside = tmp_path / "x" / ".." / "policies.yaml"
    assert policy_file.parse("", beside).origin == f"file {tmp_path}/policies.yaml"
    text = "name: platform\ndatabases: {north: {url: '${NORTH}'}}"
    found = policy_file.parse(text, beside)
    assert found.origin == found.of_database("north").origin == "file platform"
    for name in ("x" * 501, "''", "[a]"):
        with pytest.raises(ConfigurationError, match="name"):
            policy_file.parse(f"name: {name}", beside)


@pytest.mark.parametrize(("said", "count", "again"), [
    ("1", 1, "1 B"), ("'7 B'", 7, "7 B"), ("10kB", 10_000, "10 kB"), ("1024", 1_024, "1 KiB"),
    ("3MiB", 3 * 2**20, "3 MiB"), ("5 GB", 5 * 10**9, "5 GB"), ("2TiB", 2 * 2**40, "2 TiB"),
    ("9223372036854775807", 2**63 - 1, "9223372036854775807 B"),
])  # fmt: skip
def test_a_size_has_units(tmp_path: Path, said: str, count: int, again: str) -> None:
    """Of 1,000 and of 1,024; a drift says it in the largest one that is exact."""
    text = f"topics: {{a/b: {{archive: none, retention: {{minimum_age: 1d, max_bytes: {said}}}}}}}"
    found = policy_file.parse(text, tmp_path / "policies.yaml").topics["a/b"].retention
    assert found is not None
    assert found.max_bytes == count
    assert values.said_size(count) == again


@pytest.mark.parametrize("said", [
    "0", "-1", "true", "1.5GiB", "200", "200 gib", "5 KB", "9000000TiB",
    "9223372036854775808", "[]",
])  # fmt: skip
def test_what_is_no_size_is_refused(tmp_path: Path, said: str) -> None:
    """Guard: the units and the bounds in `values.size`."""
    given = f"'{said}'" if said == "200" else said
    text = f"topics: {{a/b: {{archive: none, retention: {{minimum_age: 1d, max_bytes: {given}}}}}}}"
    with pytest.raises(ConfigurationError, match=r"topics.a/b.retention.max_bytes is"):
        policy_file.parse(text, tmp_path / "policies.yaml")


def test_without_an_archive_only_if_it_is_said(tmp_path: Path) -> None:
    """Guard: `archive: none`. Without a word about the archive a retention is refused."""
    text = "topics: {a/b: {archive: none, retention: {minimum_age: 1d}}, a/c: {archive: none}}"
    found = policy_file.parse(text, tmp_path / "policies.yaml")
    assert found.topics["a/b"].retention == RetentionPolicy(86_400, copies=0)
    assert found.topics["a/b"].archive == found.topics["a/c"].archive == ()
    assert found.topics["a/c"].retention is None
