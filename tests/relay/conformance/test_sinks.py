"""Every sink passes every case that it can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.relay.conformance.cases import CASES, At
from tests.relay.conformance.only_take import OnlyTakes, OnQueue, OnRabbitMQ, OnWebhook
from tests.relay.conformance.under_test import Files, OnKafka, OnPulsar, OnRedis, UnderTest
from tests.relay.stores import streams_server

__all__ = ["streams_server"]

#: The sinks, with the marker of what each needs.
SINKS: dict[type[UnderTest], list[pytest.MarkDecorator]] = {
    Files: [],
    OnRedis: [],
    OnPulsar: [pytest.mark.pulsar, pytest.mark.timeout(900)],
    OnKafka: [pytest.mark.kafka, pytest.mark.timeout(300)],
    OnWebhook: [],
    OnQueue: [],
    OnRabbitMQ: [],
}


def _under_test(kind: type[UnderTest], request: pytest.FixtureRequest, folder: Path) -> UnderTest:
    if kind is OnPulsar:
        return OnPulsar(request.getfixturevalue("broker"))
    if kind is OnKafka:
        return OnKafka(request.getfixturevalue("kafka_broker"))
    if kind is OnRedis:
        return OnRedis(request.getfixturevalue("streams_server"))
    if issubclass(kind, OnlyTakes):
        return kind.of(request)
    return Files(folder)


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
    kind: type[UnderTest], case: str, topic: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    CASES[case](At(_under_test(kind, request, tmp_path), topic))


@pytest.mark.parametrize("kind", SINKS)
def test_what_a_sink_cannot_have_is_a_case_with_a_reason(kind: type[UnderTest]) -> None:
    assert kind.cannot.keys() <= CASES.keys()
    assert all(kind.cannot.values())
