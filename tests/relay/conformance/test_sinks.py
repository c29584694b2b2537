"""Every sink passes every case that it can have."""

from __future__ import annotations

import pytest

from tests.relay.conformance.cases import CASES, At
from tests.relay.conformance.databases import OnPenstock
from tests.relay.conformance.only_take import OnElastic, OnQueue, OnRabbitMQ, OnWebhook
from tests.relay.conformance.under_test import (
    Files,
    OnKafka,
    OnNats,
    OnPulsar,
    OnRedis,
    UnderTest,
)

#: The sinks, with the marker of what each needs.
SINKS: dict[type[UnderTest], list[pytest.MarkDecorator]] = {
    Files: [],
    OnRedis: [],
    OnNats: [],
    OnPenstock: [],
    OnPulsar: [pytest.mark.pulsar, pytest.mark.timeout(900)],
    OnKafka: [pytest.mark.kafka, pytest.mark.timeout(300)],
    OnWebhook: [],
    OnQueue: [],
    OnElastic: [pytest.mark.long],
    OnRabbitMQ: [],
}


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(
            kind,
            case,
            marks=[*marks, *([pytest.mark.long] if case in kind.slow else [])],
            id=f"{kind.name}-{case.replace(' ', '-')}",
        )
        for kind, marks in SINKS.items()
        for case in CASES
        if case not in kind.cannot
    ],
)
def test_a_sink_passes(
    kind: type[UnderTest], case: str, topic: str, request: pytest.FixtureRequest
) -> None:
    CASES[case](At(kind.of(request), topic, request))


@pytest.mark.parametrize("kind", SINKS)
def test_what_a_sink_cannot_have_is_a_case_with_a_reason(kind: type[UnderTest]) -> None:
    assert kind.cannot.keys() <= CASES.keys()
    assert all(kind.cannot.values())
