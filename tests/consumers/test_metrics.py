"""`/metrics` exports exactly what docs/reference/metrics.md lists, and the figures add up."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.errors import PermissionDenied
from penstock.log import sequence
from penstock.publishing.publish import publish
from penstock.subscriptions import dead_letters, stream
from penstock.topics import names
from penstock.upkeep import metrics, watch as module
from penstock.upkeep.metrics import (
    METRICS,
    THE_OTHERS,
    Figures,
    Histogram,
    add_up,
    exposition,
    only_counters,
)
from penstock.upkeep.watch import Watch
from tests.consumers.conftest import TOPIC, Connection, StartDaemon
from tests.consumers.process import until
from tests.consumers.test_daemon import RECORD, publish_many
from tests.kit.proof import proves

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md").read_text(
    "utf-8"
)
ROW = re.compile(r"^\| `(penstock_\w+)` \| (\w+) \|([^|]*)\| ([^|]*) \|$", re.MULTILINE)
ALL = ("--roles", "sequencer,sweep,relay,consumers")

Described = set[tuple[str, str, str, str]]


def told() -> Described:
    """Name, type, label and meaning of each metric of the page."""
    return {(name, kind, label.strip(), about) for name, kind, label, about in ROW.findall(PAGE)}


def exported(text: str) -> Described:
    """The same of what a Prometheus server reads."""
    found = set()
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {each for sample in family.samples for each in sample.labels} - {"le"}
        assert len(labels) <= 1, "one label at most"
        found.add((name, family.type, "".join(labels), family.documentation))
    return found


def of_queues() -> Described:
    """What is exported of what no daemon here serves, such as queues; by the same code."""
    elsewhere = ("queue_", "gateway_", "sink_", "relay_in_")
    names = [name for name in METRICS if name.startswith(elsewhere)]
    return exported(exposition({(name, "mails"): 1.0 for name in names}).decode())


@proves("the list of metrics")
def test_the_page_and_the_daemon_say_the_same(
    log: Connection, database_url: str, daemons: StartDaemon, tmp_path: Path
) -> None:
    """Both ways: a metric that is not on the page fails, and a row that nothing exports."""
    relay = ("--relay", f"export=jsonl:{tmp_path / 'out'}")
    daemon = daemons(database_url, *ALL, "--consumer", RECORD, *relay).wait_started()
    publish_many(log, 20)
    until(lambda: daemon.metric("penstock_handler_seconds_count", "consumer:billing") == 20, "all")
    text = daemon.get("/metrics")[1]
    assert exported(text) | of_queues() == told()
    assert (
        told() - of_queues() - exported(text.replace("penstock_lag_seconds", "penstock_other"))
    ), "a row more"
    held = {worker: daemon.metric("penstock_held_leases", worker) for worker in workers(text)}
    assert held["consumer:billing"] == 2
    assert daemon.metric("penstock_heartbeat_age_seconds", "consumer:billing") < 10
    assert "hunter2" not in text
    assert TOPIC not in text


def workers(text: str) -> set[str]:
    """Every worker that a metric names."""
    return set(re.findall(r'worker="([^"]*)"', text))


def test_what_the_database_says(log: Connection, database_url: str) -> None:
    """Lags of all subscriptions, or of the ones that are read; what waits for its sequence."""
    publish(log, TOPIC, b"x", partition=0)
    for served, everything, named in (
        ([], True, {"billing", "export"}),
        (["billing"], False, {"billing"}),
        ([], False, set()),
    ):
        watch = Watch(database_url, served, everything=everything)
        figures = watch.figures()
        assert {label for name, label in figures if name == "lag_events"} == named
        assert {label for name, label in figures if name == "take_overs"} == set(served)
        assert figures["database_up", ""] == 1
        assert figures["sequencer_lag_events", ""] == 1
        watch.close()


def test_a_scrape_a_second_is_not_a_question_a_second(log: Connection, database_url: str) -> None:
    """Guard: a result counts for a while."""
    now = [100.0]
    watch = Watch(database_url, ["billing"], everything=False, clock=lambda: now[0])
    publish(log, TOPIC, b"x", partition=0)
    assert watch.figures()["sequencer_lag_events", ""] == 1
    publish(log, TOPIC, b"x", partition=0)
    now[0] += module.MEASURE_SECONDS - 0.1
    assert watch.figures()["sequencer_lag_events", ""] == 1
    now[0] += 0.2
    assert watch.figures()["sequencer_lag_events", ""] == 2
    watch.close()


@proves("what waits is said")
def test_dead_letters_are_a_figure(
    log: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all subscriptions, of those that are served, and absent where the login may not ask."""
    publish(log, TOPIC, b"x", partition=0)
    sequence(log)
    member = stream.join(log, "billing", "a")
    leases = {each.partition: each for each in stream.check_in(log, member)}
    dead_letters.give_up(log, member, leases[0], 1, "no", attempts=3)
    for served, everything, expected in (
        ([], True, {"billing": 1.0, "export": 0.0}),
        (["export"], False, {"export": 0.0}),
    ):
        watch = Watch(database_url, served, everything=everything)
        figures = watch.figures()
        found = {label: value for (name, label), value in figures.items() if name == "dead_letters"}
        assert found == expected
        last_pass = figures["sequencer_last_pass_seconds", ""]
        assert isinstance(last_pass, float)
        assert 0 <= last_pass < 60
        watch.close()

    def refuse(*_: object) -> list[object]:
        raise PermissionDenied("not for this login")

    monkeypatch.setattr("penstock.upkeep.waiting.dead_letters.counts", refuse)
    watch = Watch(database_url, [], everything=True)
    figures = watch.figures()
    assert figures["database_up", ""] == 1
    assert not [label for name, label in figures if name == "dead_letters"]
    watch.close()


def test_many_subscriptions_are_one_figure(
    log: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_SUBSCRIPTIONS", 3)
    names.create_topic(log, "shop/more", 1)
    for number in range(4):
        stream.subscribe(log, f"more{number}", ["shop/more"])
    watch = Watch(database_url, [], everything=True)
    figures = watch.figures()
    for metric in ("lag_events", "dead_letters"):
        labels = {label for name, label in figures if name == metric}
        assert labels == {"billing", "export", "more0", THE_OTHERS}
    watch.close()


def test_a_database_that_is_away_is_one_figure() -> None:
    watch = Watch("postgresql://me:hunter2@127.0.0.1:1/app", [], everything=True)
    assert watch.figures() == {("database_up", ""): 0.0}
    assert watch.problem() == "the database cannot be used (DatabaseUnavailable)"
    assert "hunter2" not in watch.problem()


def test_figures_of_processes_add_up() -> None:
    one: Figures = {("consumed_events", "c"): 3.0, ("worker_up", "c"): 1.0,
                    ("heartbeat_age_seconds", "c"): 2.0, ("held_leases", "c"): 4.0}  # fmt: skip
    two: Figures = {("consumed_events", "c"): 5.0, ("worker_up", "c"): 0.0,
                    ("heartbeat_age_seconds", "c"): 1.0, ("held_leases", "c"): 1.0}  # fmt: skip
    assert add_up([one, two]) == {
        ("consumed_events", "c"): 8.0, ("worker_up", "c"): 0.0,
        ("heartbeat_age_seconds", "c"): 2.0, ("held_leases", "c"): 5.0,
    }  # fmt: skip
    # Of a process that is gone its counters stay, so that no counter ever falls.
    assert only_counters(two) == {("consumed_events", "c"): 5.0}


def test_a_histogram_counts_calls_that_fail_too() -> None:
    """Guard: ``timed`` counts in ``finally``.  The clock says how long each call takes."""
    now = [0.0]
    calls = Histogram(clock=lambda: now[0])

    def take(seconds: float) -> float:
        now[0] += seconds
        return seconds

    def fail(text: str) -> None:
        now[0] += 0.0005
        raise ValueError(text)

    for seconds in (0.0, 0.004, 1000.0):
        assert calls.timed(take)(seconds) == seconds
    with pytest.raises(ValueError, match="broken"):
        calls.timed(fail)("broken")
    calls.observe(0.001)
    text = exposition({("handler_seconds", "w"): add_up([
        {("handler_seconds", "w"): calls.figure()}, {("handler_seconds", "w"): calls.figure()}
    ])["handler_seconds", "w"]}).decode()  # fmt: skip
    assert 'penstock_handler_seconds_bucket{le="0.001",worker="w"} 6.0' in text
    assert 'penstock_handler_seconds_bucket{le="0.005",worker="w"} 8.0' in text
    assert 'penstock_handler_seconds_bucket{le="+Inf",worker="w"} 10.0' in text
    assert 'penstock_handler_seconds_count{worker="w"} 10.0' in text


def test_a_measured_handler_is_of_the_same_kind() -> None:
    """A consumer asks whether a handler is a coroutine function, and refuses a generator."""
    calls = Histogram()

    async def answer(text: str) -> str:
        await asyncio.sleep(0)
        return text

    def generate(text: str) -> Iterator[str]:
        yield text

    measured = calls.timed(answer)
    assert inspect.iscoroutinefunction(measured)
    assert asyncio.run(measured("abc")) == "abc"
    assert calls.timed(generate) is generate
    assert sum(calls.figure()[:-1]) == 1


def test_a_figure_without_a_description_is_noticed() -> None:
    """Guard: METRICS is the only list of what there is."""
    with pytest.raises(KeyError):
        add_up([{("unheard_of", ""): 1.0}])
    assert "unheard_of" not in METRICS
