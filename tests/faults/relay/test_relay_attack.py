"""Relays under attack: each event once and in order in the sink, and the harness bites."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.faults.relay.attack import Plan, Verdict, attack
from tests.faults.world import SEED
from tests.relay.conformance.under_test import OnKafka, UnderTest

pytestmark = pytest.mark.timeout(3600)

#: PENSTOCK_FAULT_EVENTS=20000 PENSTOCK_FAULT_KILLS=6 is a short form of the long ones.
EVENTS = int(os.environ.get("PENSTOCK_FAULT_EVENTS", "200000"))
KILLS = int(os.environ.get("PENSTOCK_FAULT_KILLS", "24"))
LONG = Plan(EVENTS, KILLS, pauses=max(1, KILLS // 4 + 1), restarts=2, seed=SEED)

Connection = psycopg.Connection[Any]


def judged(
    connection: Connection, url: str, topic: str, under_test: UnderTest, plan: Plan
) -> Verdict:
    """Run the attack, and print its figures."""
    begun = time.monotonic()
    with attack(connection, url, topic, under_test, plan) as made:
        verdict = made.run()
        seconds = time.monotonic() - begun
        told = f"{under_test.name}: {verdict}, {dict(made.done_deeds)}, {seconds:.0f} s, {plan}"
        print(told)  # noqa: T201 - make test-long ARGS="-k under_attack -s" shows it
    return verdict


@pytest.mark.parametrize("under_test", ["jsonl"], indirect=True)
def test_two_relays_under_a_few_deeds(
    connection: Connection, database_url: str, topic: str, under_test: UnderTest
) -> None:
    """The small form, on files. Guards: recorded blocks; one partition in one thread."""
    plan = Plan(4_000, kills=1, pauses=1, restarts=0, seed=SEED)
    verdict = judged(connection, database_url, topic, under_test, plan)
    assert verdict == Verdict(verdict.events, 0, 0, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    "under_test",
    [
        "jsonl",
        pytest.param("pulsar", marks=pytest.mark.pulsar),
        pytest.param("kafka", marks=pytest.mark.kafka),
    ],
    indirect=True,
)
def test_a_sink_under_attack_equals_the_log(
    connection: Connection, database_url: str, topic: str, under_test: UnderTest
) -> None:
    """At least 20 kills, 6 pauses past the lease, 2 restarts: each event once and in order."""
    verdict = judged(connection, database_url, topic, under_test, LONG)
    assert verdict == Verdict(verdict.events, 0, 0, 0)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.parametrize("under_test", ["kafka"], indirect=True)
def test_the_textbook_relay_doubles(
    connection: Connection, database_url: str, topic: str, under_test: UnderTest
) -> None:
    """An idempotent producer without transactions, in the same harness: so it bites."""
    assert isinstance(under_test, OnKafka)
    plan = replace(LONG, textbook=True, restarts=0)
    assert judged(connection, database_url, topic, under_test, plan).doubled > 0
