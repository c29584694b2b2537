"""Relays under attack: each event once and in order in the sink, and the harness bites."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults.relay.attack import FILTER, Plan, RelayAttack, Verdict, attack
from tests.faults.world import SEED
from tests.kit.proof import proves
from tests.relay.conformance.under_test import UnderTest

pytestmark = pytest.mark.timeout(3600)

Connection = psycopg.Connection[Any]
Judge = Callable[[UnderTest, Plan], Verdict]


def planned(events: int, kills: int, restarts: int) -> Plan:
    """PENSTOCK_FAULT_EVENTS=20000 PENSTOCK_FAULT_KILLS=6 is a short form of the long ones."""
    events = int(os.environ.get("PENSTOCK_FAULT_EVENTS", events))
    kills = int(os.environ.get("PENSTOCK_FAULT_KILLS", kills))
    return Plan(events, kills, pauses=max(1, kills // 4 + 1), restarts=restarts, seed=SEED)


LONG = planned(200_000, 24, 2)
SHORTER = planned(50_000, 18, 2)


#: A filter with a template: of the key where a sink has one place, else of the place.
ONE_PLACE, PLACES = f"{FILTER}&key={{type}}", f"{FILTER}&to={{topic}}.{{type}}"


@pytest.fixture
def judge(connection: Connection, database_url: str, topic: str, tmp_path: Path) -> Judge:
    """Runs an attack, and prints its figures."""
    places: dict[str, Any] = {"url": database_url, "topic": topic, "folder": tmp_path}

    def run(under_test: UnderTest, plan: Plan) -> Verdict:
        begun = time.monotonic()
        with attack(connection, under_test, plan, **places) as made:
            verdict = made.run()
            seconds = time.monotonic() - begun
            told = f"{under_test.name}: {verdict}, {dict(made.done_deeds)}, {seconds:.0f} s, {plan}"
            print(told)  # noqa: T201 - make test-long ARGS="-k under_attack -s" shows it
        return verdict

    return run


@proves(
    "another database gets each event once",
    how="Redis, NATS and MySQL, killed, paused and restarted",
)
@proves("partitions are sent side by side")
@pytest.mark.parametrize("under_test", ["jsonl"], indirect=True)
def test_two_relays_under_a_few_deeds(judge: Judge, under_test: UnderTest) -> None:
    """The small form, on files. Guards: recorded blocks; one partition in one thread."""
    verdict = judge(under_test, Plan(4_000, kills=1, pauses=1, restarts=0, seed=SEED))
    assert verdict == Verdict(verdict.events, 0, 0, 0)


@proves("a sink that only takes gets everything")
@pytest.mark.parametrize("under_test", ["webhook"], indirect=True)
def test_a_sink_that_only_takes_under_a_few_deeds(judge: Judge, under_test: UnderTest) -> None:
    """The small form: nothing is lost, and what is doubled was in an open block."""
    verdict = judge(under_test, Plan(1_200, kills=1, pauses=1, restarts=1, seed=SEED))
    assert verdict == Verdict(verdict.events, 0, verdict.doubled, 0)


@proves(
    "another database gets each event once",
    how="Redis, NATS and MySQL, killed, paused and restarted",
)
@pytest.mark.long
@pytest.mark.parametrize(
    ("under_test", "plan"),
    [
        ("jsonl", LONG),
        pytest.param("pulsar", LONG, marks=pytest.mark.pulsar),
        pytest.param("kafka", LONG, marks=pytest.mark.kafka),
        ("redis", SHORTER),
        ("nats", SHORTER),
        ("penstock", SHORTER),
    ],
    indirect=["under_test"],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_sink_under_attack_equals_the_log(
    judge: Judge, under_test: UnderTest, plan: Plan
) -> None:
    """At least 16 kills, 5 pauses past the lease, 2 restarts: each event once and in order."""
    verdict = judge(under_test, plan)
    assert verdict == Verdict(verdict.events, 0, 0, 0)


@proves("what rules leave out is no loss", how="relays killed, paused and restarted")
@pytest.mark.parametrize(
    ("under_test", "rules"),
    [("jsonl", ONE_PLACE), ("redis", PLACES)],
    indirect=["under_test"],
    ids=["jsonl", "redis"],
)
def test_rules_under_a_few_deeds(judge: Judge, under_test: UnderTest, rules: str) -> None:
    """The small form: what passes the filter is there once and in order, the rest never."""
    pauses = int(under_test.name == "jsonl")
    plan = Plan(2_000, kills=1, pauses=pauses, restarts=0, seed=SEED, rules=rules)
    verdict = judge(under_test, plan)
    assert verdict == Verdict(verdict.events, 0, 0, 0)
    assert min(verdict.events, verdict.left_out) > 500


@proves("what rules leave out is no loss", how="relays killed, paused and restarted")
@pytest.mark.long
@pytest.mark.parametrize(
    ("under_test", "plan"),
    [
        ("jsonl", replace(SHORTER, rules=ONE_PLACE)),
        pytest.param("kafka", replace(SHORTER, rules=PLACES), marks=pytest.mark.kafka),
        ("redis", replace(SHORTER, rules=PLACES)),
        ("nats", replace(SHORTER, rules=PLACES)),
    ],
    indirect=["under_test"],
    ids=["jsonl", "kafka", "redis", "nats"],
)
def test_rules_under_attack(judge: Judge, under_test: UnderTest, plan: Plan) -> None:
    """The same deeds, with a filter, and a template of the key or of the place."""
    verdict = judge(under_test, plan)
    assert verdict == Verdict(verdict.events, 0, 0, 0)
    assert min(verdict.events, verdict.left_out) > plan.events // 4


@proves("a sink that only takes gets everything")
@pytest.mark.long
@pytest.mark.parametrize(
    ("under_test", "plan"),
    [("webhook", SHORTER), ("rabbitmq", SHORTER), ("sqs", planned(20_000, 18, 2))],
    indirect=["under_test"],
    ids=["webhook", "rabbitmq", "sqs"],
)
def test_a_sink_that_only_takes_under_attack(
    judge: Judge, under_test: UnderTest, plan: Plan
) -> None:
    """The same deeds: nothing is lost, in order, and what is doubled was in an open block."""
    verdict = judge(under_test, plan)
    assert verdict == Verdict(verdict.events, 0, verdict.doubled, 0)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.parametrize("under_test", ["kafka"], indirect=True)
def test_the_textbook_relay_doubles(judge: Judge, under_test: UnderTest) -> None:
    """An idempotent producer without transactions, in the same harness: so it bites."""
    assert judge(under_test, replace(LONG, textbook=True, restarts=0)).doubled > 0


def test_what_comes_again_after_its_block_has_ended_is_seen(tmp_path: Path) -> None:
    """Nobody began the first block again, and the second one was there already."""
    made: Any = object.__new__(RelayAttack)
    made.begun = tmp_path / "begun"
    made.begun.write_text("0 1 10\n0 11 20\n0 21 30\n0 21 30\n")
    once = [(number, b"") for number in range(1, 31)]
    assert not made._was_open(0, (5, b""), [*once, (5, b"")])
    assert made._was_open(0, (5, b""), [*once[:7], (5, b""), *once[7:]])
    assert made._was_open(0, (25, b""), [*once, (25, b"")])
