"""How fast a relay sends, and when it leaves its sink alone: by a clock of the test."""

from __future__ import annotations

import pytest

from ops.relay.pace import CLOSED, HALF_OPEN, OPEN, Breaker, RelayPace
from ops.sinks.pacing import Pacing
from ops.sinks.routing import parse_routing
from penstock.errors import ConfigurationError
from tests.kit.proof import proves
from tests.relay.blocks import block, event


class Clock:
    """The time that the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@proves("a relay keeps its pace")
def test_events_go_at_their_rate_and_what_was_not_used_is_kept_for_a_second() -> None:
    clock = Clock()
    pace = RelayPace(Pacing(events_per_second=100), clock)
    sent = 0
    while clock.now < 160.0:
        if not pace.wait_seconds():
            pace.spend(block(1, 50).events)
            sent += 50
        clock.now += 0.3
    assert 5_900 <= sent <= 6_150
    clock.now += 3_600
    pace.spend(block(1, 200).events)
    assert pace.wait_seconds() == pytest.approx(1.0)


def test_bytes_have_a_rate_of_their_own_and_the_slower_one_counts() -> None:
    clock = Clock()
    pace = RelayPace(Pacing(events_per_second=1_000, bytes_per_second=10), clock)
    clock.now += 1
    pace.spend([event(1, payload=b"x" * 50)])
    assert pace.wait_seconds() == pytest.approx(4.0)
    clock.now += 4
    assert pace.wait_seconds() == 0
    free = RelayPace(Pacing(), clock)
    free.spend(block(1, 5_000).events)
    assert free.wait_seconds() == 0


def test_a_block_has_about_a_second() -> None:
    pacing = Pacing(events_per_second=0.5, bytes_per_second=3_000)
    assert (pacing.block_events(5_000), pacing.block_bytes(1 << 20)) == (1, 3_000)
    assert (Pacing().block_events(5_000), Pacing().block_bytes(7)) == (5_000, 7)


@proves("a relay keeps its pace")
def test_the_breaker_opens_probes_and_closes() -> None:
    clock = Clock()
    breaker = Breaker(Pacing(breaker=3, breaker_seconds=10), clock)
    for _ in range(2):
        breaker.failed()
    breaker.succeeded()  # only failures in a row count
    for _ in range(2):
        breaker.failed()
    assert breaker.state == CLOSED
    assert breaker.lets_through(7)
    breaker.failed()
    breaker.failed()  # what was under way ends too, and prolongs nothing
    assert (breaker.state, breaker.lets_through(0)) == (OPEN, False)
    clock.now += 10
    assert breaker.state == HALF_OPEN
    assert (breaker.lets_through(0), breaker.lets_through(1)) == (True, False)
    breaker.failed()
    clock.now += 19
    assert breaker.state == OPEN  # twice as long
    clock.now += 1
    breaker.succeeded()
    assert (breaker.state, breaker.lets_through(3)) == (CLOSED, True)


@proves("a relay keeps its pace", guard="the record of its pace")
def test_without_being_asked_for_it_never_opens() -> None:
    breaker = Breaker(Pacing(), Clock())
    for _ in range(1_000):
        breaker.failed()
    assert breaker.state == CLOSED


@pytest.mark.parametrize("rule", ["rate=0", "rate=fast", "rate_bytes=-1", "breaker=1.5"])
def test_what_is_no_number_is_refused(rule: str) -> None:
    with pytest.raises(ConfigurationError, match="is no"):
        parse_routing(rule)
    given = parse_routing("rate=2.5&rate_bytes=1000&breaker=5&breaker_seconds=1")[0].pacing
    assert given == Pacing(2.5, 1000, 5, 1)
