"""The benchmark runs, in a tiny size: the shape of what it writes, not the figures."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks import history, versions
from benchmarks.__main__ import GROUPS, main, measured_on
from benchmarks.bench import Bench
from benchmarks.bench_database import BenchDatabase, bench_database
from benchmarks.engines import ENGINES
from benchmarks.measure import Aim, Case, Figure, Gap, Settings, figure, measure
from benchmarks.peers.install import PeerMissing
from benchmarks.report import line
from penstock.errors import PenstockError
from tests import servers
from tests.kit.log import wait_until
from tests.support import missing
from tools.servers.postgres_matrix import NEWEST

#: On MySQL nothing is different from MariaDB.
pytestmark = pytest.mark.long_on("mysql")

TINY = Settings(
    rows=40,
    rounds=1,
    hold_seconds=0.5,
    held_events=600,
    held_batch=50,
    retained_events=300,
    load_seconds=3,
    unvacuumed_seconds=0.5,
)
IDLE = ["idle_daemon", "idle_database", "idle_calls"]
CONTROL_PLANE = [
    "control_plane_load", "control_plane_load_processor", "control_plane_tick",
    "control_plane_ticks", "control_plane_tick_processor", "control_plane_attach",
    "control_plane_idle", "control_plane_idle_jvms",
]  # fmt: skip
HELD = ["held_publish", "held_sequence", "held_fetch", "held_consume", "held_kept_rate"]
UNVACUUMED = [name.replace("held", "unvacuumed") for name in HELD[:-1]]
LATENCY = [
    "latency_fsync", "latency_hot_p50", "latency_hot_p99", "latency_hot_max",
    "latency_hot_database", "latency_queue_p50", "latency_queue_p99", "latency_cold_p50",
    "latency_cold_p99",
]  # fmt: skip
#: On PostgreSQL alone: nobody else can wake a sequencer.
WOKEN = ["latency_woken_p50", "latency_woken_p99"]
#: What comes last on PostgreSQL, and nowhere else.
ON_POSTGRES = {"latency": WOKEN, "consume": ["consume_tuples"]}
#: What is measured beside the peer, and what beside ourselves.
QUEUE_BESIDE_PEER = [
    "queue_500", "queue_100", "queue_10", "queue_500_workers_16", "queue_10_workers_16",
    "queue_1_workers_16",
]  # fmt: skip
QUEUE_HANDLERS = ["queue_handlers_1", "queue_handlers_16"]
QUEUE = [
    *QUEUE_BESIDE_PEER,
    "queue_10_workers_64",
    "queue_500_beside",
    *QUEUE_HANDLERS,
    "queue_delayed_p50",
    "held_queue",
]
QUEUE_OF_MYSQL = ["queue_500", *QUEUE_HANDLERS, "queue_delayed_p50", "held_queue"]
GATEWAY = [
    "gateway_publish_1", "gateway_publish_16", "gateway_publish_p50", "gateway_publish_p99",
    "gateway_sqs_send", "gateway_sqs_cycle", "gateway_idle",
]  # fmt: skip
ACCOUNTS = [
    "account_publish", "account_publish_quota", "account_publish_open", "account_receive",
    "account_acknowledge",
]  # fmt: skip
STARTS = [
    "start_import", "start_publisher", "start_consumer", "start_version", "start_publish"
]  # fmt: skip
#: The peers come from the package registries, so they are not among the tests of every run.
NAMES = {
    "publish": ["publish_single", "publish_batch_500"],
    "bulk": ["publish_batch_500_arrays", "publish_copy", "publish_table"],
    "single": ["pgbench_single", "pgbench_tpcb", "pgbench_tpcb_plain"],
    "accounts": ACCOUNTS,
    "start": STARTS,
    "sequence": ["sequence", "sequence_1024_partitions", "sequence_20_topics"],
    "fetch": ["fetch", "fetch_live_ticks"],
    "consume": ["consume", "consume_class"],
    "load": [
        "load_check_ins", "load_database_cpu", "load_check_in_median", "load_check_in_p99",
        "load_replaced",
    ],
    "idle": IDLE,
    "control_plane": CONTROL_PLANE,
    "spark": [
        "spark_read_hot", "spark_stream", "spark_write", "spark_stream_p50", "spark_archive",
        "spark_archive_processor", "spark_read_cold", "cold_start", "cold_start_processor",
    ],
    "latency": LATENCY,
    "queue": QUEUE,
    "gateway": GATEWAY,
    "held": HELD,
    "unvacuumed": UNVACUUMED,
    "retained": [
        "retained_publish_batch_500", "retained_publish_8_clients", "retained_empty_tick",
        "retained_read_newest", "retained_empty_tick_buffers",
    ],
}  # fmt: skip
PILED_UP = {"postgres": "held_dead_tuples_per_1000_events"}
IN_UNDO = "held_undo_logs_per_1000_events"
ALONE = {
    "sequence", *IDLE, *NAMES["load"], *STARTS, "held_kept_rate", "retained_empty_tick_buffers",
    IN_UNDO,
    *(set(CONTROL_PLANE) - {"control_plane_ticks", "control_plane_tick_processor"}),
    *PILED_UP.values(), *LATENCY, *WOKEN, *QUEUE_BESIDE_PEER, *QUEUE_HANDLERS, "queue_delayed_p50",
    "consume_tuples", "spark_stream", "spark_stream_p50", "spark_archive",
    "spark_archive_processor", "cold_start", "cold_start_processor",
    *(set(GATEWAY) - {"gateway_sqs_send", "gateway_sqs_cycle"}),
}  # fmt: skip
FIELDS = [
    "name", "engine", "value", "unit", "peer", "ratio", "rows", "batch", "against", "aim", "met"
]  # fmt: skip
FLUSH = ("SET GLOBAL innodb_flush_log_at_trx_commit", "1", "2")
DURABLE = {"postgres": ("SET synchronous_commit", "on", "off"), "mysql": FLUSH, "mariadb": FLUSH}
HOLDERS = {
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL"
    " AND state = 'idle in transaction' AND datname = current_database()"
}
IN_INNODB = """
SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_isolation_level = 'REPEATABLE READ'
"""
#: They take their time, and do nothing that depends on the engine.
SLOW = {"held", "publish"}
#: Those that start a Spark, a Dagster or many processes, or wait.
LONG = {
    *("spark", "control_plane", "queue", "gateway", "start"),
    *("latency", "load", "idle", "retained", "unvacuumed"),
}
#: Figures that may be nothing at all.
OFTEN_ZERO = {*IDLE, "control_plane_idle_jvms"}


def _is_long(engine: str, group: str) -> bool:
    return group in LONG or (engine != "postgres" and group in SLOW)


RUNS = [
    pytest.param(
        engine, group,
        marks=pytest.mark.long if _is_long(engine, group) else (),
        id=f"{engine}-{group}",
    )
    for engine in ENGINES for group in NAMES if engine in GROUPS[group].engines
]  # fmt: skip


@pytest.fixture(scope="module")
def benches() -> Iterator[Callable[[str], Bench]]:
    """The database of an engine, opened when the first test asks for it.

    All groups share it here: in a run each has one of its own.
    """
    with ExitStack() as stack:

        @cache
        def bench(engine: str) -> Bench:
            try:
                opens = stack.enter_context(ENGINES[engine]())
            except PenstockError as error:
                missing(engine, error)
            return stack.enter_context(opens("bench"))

        yield bench


@pytest.fixture
def bench(benches: Callable[[str], Bench], request: pytest.FixtureRequest) -> Bench:
    """The one of the engine that the test names."""
    if request.param not in servers.chosen():
        pytest.skip(f"this run is about {', '.join(servers.chosen())}")
    return benches(request.param)


@pytest.mark.parametrize(("bench", "group"), RUNS, indirect=["bench"])
def test_each_group_runs(bench: Bench, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.queue.Pgmq", _missing)
    figures = list(_measured(bench, group))

    names = [*NAMES[group]]
    if group == "queue" and bench.engine != "postgres":
        names = QUEUE_OF_MYSQL
    if group == "held":
        names.append(PILED_UP.get(bench.engine, IN_UNDO))
    if bench.engine == "postgres":
        names += ON_POSTGRES.get(group, [])
    assert [each.name for each in figures] == names
    for each in figures:
        assert each.rows > 0
        assert each.batch >= 1
        assert each.value > 0 or each.unit == bench.garbage_name or each.name in OFTEN_ZERO
        assert (each.ratio is None) == (each.name in ALONE)
        assert (each.peer is None) <= (each.name in ALONE)
        assert (each.met is None) == (each.aim is None)


@pytest.mark.parametrize("bench", ENGINES, indirect=True)
def test_commits_that_are_not_durable_are_refused(bench: Bench) -> None:
    setting, on, off = DURABLE[bench.engine]
    bench.require_durable()

    bench.execute(f"{setting} = {off}")
    try:
        with pytest.raises(SystemExit, match="would mean nothing"):
            bench.require_durable()
    finally:
        bench.execute(f"{setting} = {on}")


@pytest.mark.parametrize("bench", ENGINES, indirect=True)
def test_the_held_view_is_held_until_its_end(bench: Bench) -> None:
    def holders() -> int:
        # InnoDB makes this table anew only when nobody has read it for a tenth of a second.
        time.sleep(0.12)
        return int(bench.figure(HOLDERS.get(bench.engine, IN_INNODB)))

    with bench.held_view():
        wait_until(lambda: holders() == 1, "a session holds a snapshot")
    wait_until(lambda: holders() == 0, "nobody holds a snapshot")


@pytest.mark.long
@pytest.mark.timeout(600)  # they are fetched, once
@pytest.mark.parametrize("bench", ["postgres"], indirect=True)
def test_the_peers_are_measured_where_they_can_be_had(bench: Bench) -> None:
    assert all(each.value > 0 and each.ratio for each in _measured(bench, "peers"))
    alone = ALONE - set(QUEUE_BESIDE_PEER)
    for each in _measured(bench, "queue"):
        assert each.value > 0 and (each.ratio or each.name in alone)
    *by_clients, deadlocks = _measured(bench, "scale")
    for each in by_clients:
        assert each.value > 0 and (each.ratio or each.name.startswith("scale_consumer"))
    assert deadlocks.value == 0


@pytest.mark.long
@pytest.mark.parametrize("bench", ["postgres"], indirect=True)
def test_calls_are_measured_beside_the_newest_version(
    bench: BenchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Databases of one server stand for the versions."""

    def opened(major: int) -> AbstractContextManager[BenchDatabase]:
        return bench_database(bench.server, f"bench_{major}")

    monkeypatch.setattr(versions, "_opened", opened)
    monkeypatch.setattr(versions, "VERSIONS", {15: "", NEWEST: ""})
    figures = {each.name: each for each in _measured(bench, "versions")}

    calls = [name.removeprefix("version_15_") for name in figures if "_15_" in name]
    assert list(figures) == [f"version_{one}_{call}" for one in ("15", "wheel") for call in calls]
    assert {"publish", "pass_3", "poll_none", "tuples", "receive_1", "acknowledge_500"} < set(calls)
    assert all(each.value > 0 and each.ratio for each in figures.values())
    aims = {name for name, each in figures.items() if each.aim}
    assert aims == {f"version_15_{call}" for call in calls} - {"version_15_insert"}


def _missing(_: Bench) -> NoReturn:
    raise PeerMissing("it is not fetched for this test")


def _measured(bench: Bench, group: str) -> Iterator[Figure]:
    for found in GROUPS[group].cases(bench, TINY):
        if not isinstance(found, Gap):
            yield found if isinstance(found, Figure) else measure(found, TINY.rounds)


@pytest.mark.parametrize("bench", ["postgres"], indirect=True)
def test_all_figures_are_written(
    bench: Bench,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "bench.json"
    tiny = ["--rows", "40", "--rounds", "1", "--engine", "postgres", "--only", "bulk"]
    monkeypatch.setitem(ENGINES, "postgres", lambda: nullcontext(lambda _: nullcontext(bench)))

    assert main([*tiny, "--output", str(output)]) == 0

    figures = json.loads(output.read_text())
    assert [each["name"] for each in figures] == NAMES["bulk"]
    (run,) = history.read(tmp_path / "bench-history.jsonl")
    assert [asdict(each) for each in run.figures] == figures
    for each in figures:
        assert list(each) == FIELDS
        assert each["engine"] == "postgres"
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES["bulk"])
    assert re.search(r"load of the last minute \d", shown)


def test_older_versions_have_what_every_engine_has() -> None:
    assert {"publish", "queue", "latency", "sequence", "consume"} <= {
        group for group in GROUPS if "postgres-15" in measured_on(group)
    }
    assert "postgres-15" not in measured_on("bulk") | measured_on("single")
    assert "postgres-15" not in ENGINES


def test_what_no_engine_can_do_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--engine", "mysql", "--only", "retained"]) == 1
    assert "nothing was measured" in capsys.readouterr().err


def test_pairs_alternate_and_medians_count() -> None:
    order: list[str] = []
    seconds = {"ours": iter([9.0, 1.0, 2.0, 4.0]), "peer": iter([9.0, 1.0, 1.0, 1.0])}

    def run(who: str) -> float:
        order.append(who)
        return next(seconds[who])

    case = Case("name", 100, 10, lambda: run("ours"), lambda: run("peer"), peer_rows=50)
    measured = measure(case, rounds=3)

    warm_up = ["ours", "peer"]
    assert order == [*warm_up, "peer", "ours", "ours", "peer", "peer", "ours"]
    assert (measured.value, measured.peer, measured.ratio) == (50.0, 50.0, 1.0)
    assert line(measured) == "name: 50.0 events/s, ratio 1.00"


@pytest.mark.parametrize(
    ("aim", "said", "met", "missed"),
    [
        (Aim(ratio=0.7), ">= 0.7x", (1, 0.7), (100, 0.69)),
        (Aim(cost=1.25), "cost <= 1.25x", (1, 0.8), (100, 0.79)),
        (Aim(value=500_000), ">= 500,000", (500_000, None), (499_999, None)),
        (Aim(at_most=100), "<= 100", (100, None), (101, None)),
        (Aim(at_most=2.5), "<= 2.5", (2.5, None), (2.6, None)),
    ],
)
def test_an_aim_is_judged(
    aim: Aim, said: str, met: tuple[float, float | None], missed: tuple[float, float | None]
) -> None:
    for (value, ratio), verdict in ((met, True), (missed, False)):
        judged = figure("name", value, ratio=ratio, unit="", rows=1, batch=1, aim=aim)
        assert (judged.aim, judged.met) == (said, verdict)


def test_a_wrong_choice_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])
    with pytest.raises(SystemExit):
        main(["--rows", "0"])
    with pytest.raises(SystemExit):
        main(["--engine", "oracle"])
