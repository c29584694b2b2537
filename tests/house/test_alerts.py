"""The alerts of deploy/: their rules hold, each has a section, and what they read is exported."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from penstock.doctor.findings import ALERTS, error, warning
from penstock.upkeep.metrics import METRICS
from tools.servers.stores import PROMTOOL

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "penstock.rules.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "penstock.json"
METRIC = re.compile(r"\bpenstock_\w+")
EXPORTED = {
    "penstock_" + name + suffix
    for name, about in METRICS.items()
    for suffix in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
        about.kind, ("",)
    )
}
BUCKETS = ("0.01", "0.05", "0.1", "0.2", "0.5", "+Inf")


def alerts() -> dict[str, dict[str, Any]]:
    """Every rule, by the name of its alert."""
    (group,) = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return {each["alert"]: each for each in group["rules"]}


def calls(operation: str, fast: str) -> list[tuple[str, str]]:
    """Ten calls a second, of which 2 % take longer than a bucket: once the alert's, once less."""
    place = BUCKETS.index(fast)
    return [
        (
            f'penstock_operation_seconds_bucket{{operation="{operation}",le="{bound}"}}',
            f"0+{600 if number > place else 588}x30",
        )
        for number, bound in enumerate(BUCKETS)
    ]


#: What makes each alert fire within 20 minutes, and what is the nearest that must not.
Series = list[tuple[str, str]]
CASES: dict[str, tuple[Series, Series]] = {
    "PenstockProgramAway": (
        [("up", "1x5 0x30"), ("penstock_database_up", "1x5 stale")],
        [("up", "1x30"), ("penstock_database_up", "1x30"), ('up{job="another"}', "0x30")],
    ),
    "PenstockDatabaseAway": (
        [("penstock_database_up", "0x30")],
        [("penstock_database_up", "1x19 0 1x10")],
    ),
    "PenstockNobodySequences": (
        [("penstock_sequencer_lag_seconds", "0+60x30")],
        [("penstock_sequencer_lag_seconds", "15x30")],
    ),
    "PenstockSequencerBehind": (
        [("penstock_sequencer_lag_events", "10001x30")],
        [("penstock_sequencer_lag_events", "10000x30")],
    ),
    "PenstockPublishSlow": (calls("publish", "0.05"), calls("publish", "0.01")),
    "PenstockPublishBatchSlow": (calls("publish_batch", "0.2"), calls("publish_batch", "0.1")),
    "PenstockPollSlow": (calls("poll", "0.1"), calls("poll", "0.05")),
    "PenstockCommitSlow": (calls("commit", "0.05"), calls("commit", "0.01")),
    "PenstockSubscriptionLate": (
        [('penstock_lag_seconds{subscription="billing"}', "301x30")],
        [('penstock_lag_seconds{subscription="billing"}', "300x30")],
    ),
    "PenstockRelayLate": (
        [
            ('penstock_lag_seconds{subscription="export"}', "61x30"),
            ('penstock_relayed_batches_total{worker="relay:export"}', "1x30"),
        ],
        [
            ('penstock_lag_seconds{subscription="billing"}', "61x30"),
            ('penstock_relayed_batches_total{worker="relay:export"}', "1x30"),
        ],
    ),
    "PenstockQueueOld": (
        [('penstock_queue_oldest_seconds{subscription="mails"}', "601x30")],
        [('penstock_queue_oldest_seconds{subscription="mails"}', "600x30")],
    ),
    "PenstockDeadLetters": (
        [('penstock_dead_letters{subscription="billing"}', "1x30")],
        [('penstock_dead_letters{subscription="billing"}', "0x30")],
    ),
    "PenstockHandlerFails": (
        [('penstock_consumed_failures_total{worker="consumer:billing"}', "0+3x30")],
        [('penstock_consumed_failures_total{worker="consumer:billing"}', "0+1x30")],
    ),
    "PenstockWorkerRestarts": (
        [('penstock_worker_restarts_total{worker="sweep"}', "0+1x30")],
        [('penstock_worker_restarts_total{worker="sweep"}', "5x30")],
    ),
    "PenstockHeartbeatLate": (
        [('penstock_heartbeat_age_seconds{worker="consumer:billing"}', "8.1x30")],
        [('penstock_heartbeat_age_seconds{worker="consumer:billing"}', "8x30")],
    ),
    "PenstockFenceRefuses": (
        [("penstock_rejected_commits_total", "0x19 1x10")],
        [("penstock_rejected_commits_total", "7x30")],
    ),
    "PenstockHorizonHeld": (
        [("penstock_horizon_age_seconds", "601x30")],
        [("penstock_horizon_age_seconds", "600x30")],
    ),
    "PenstockStorageShort": (
        [("penstock_storage_days", "1.9x30")],
        [("penstock_storage_days", "2x30")],
    ),
}


def promtool(*arguments: str) -> str:
    """What the program says; AssertionError when it refuses."""
    done = subprocess.run(
        [*PROMTOOL.command(), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def raised(folder: Path, place: int, expected: int) -> None:
    """Whether Prometheus raises the alerts after twenty minutes of these series."""
    firing = 'count(ALERTS{{alertname="{}",alertstate="firing"}}) or vector(0)'
    tests = [
        {
            "interval": "1m",
            "input_series": [
                {"series": name, "values": values} for name, values in CASES[alert][place]
            ],
            "promql_expr_test": [
                {
                    "expr": firing.format(alert),
                    "eval_time": "20m",
                    "exp_samples": [{"labels": "{}", "value": expected}],
                }
            ],
        }
        for alert in CASES
    ]
    path = folder / "alerts.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": tests}))
    promtool("test", "rules", str(path))


def test_prometheus_reads_the_rules() -> None:
    said = promtool("check", "rules", str(RULES))
    assert f"{len(alerts())} rules found" in said
    assert set(CASES) == set(alerts())


def test_every_alert_fires_beyond_its_limit(tmp_path: Path) -> None:
    """Guard: the expression of each rule."""
    raised(tmp_path, place=0, expected=1)


def test_an_alert_fires_when_nothing_says_anything(tmp_path: Path) -> None:
    """Nobody scrapes Penstock, or all that exports was taken out of the list of targets.

    Guard: `absent` in the rule.
    """
    test = {
        "input_series": [{"series": 'up{job="another"}', "values": "1x30"}],
        "alert_rule_test": [
            {
                "eval_time": "20m",
                "alertname": "PenstockProgramAway",
                "exp_alerts": [
                    {
                        "exp_labels": {"severity": "page"},
                        "exp_annotations": alerts()["PenstockProgramAway"]["annotations"]
                        | {"summary": "everything that exports metrics of Penstock is gone"},
                    }
                ],
            }
        ],
    }
    path = tmp_path / "alerts.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    promtool("test", "rules", str(path))


def counted(folder: Path, series: Series, expected: dict[str, int]) -> None:
    """That so many of each alert fire after twenty minutes of these series."""
    firing = 'count(ALERTS{{alertname="{}",alertstate="firing"}}) or vector(0)'
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [
            {
                "expr": firing.format(alert),
                "eval_time": "20m",
                "exp_samples": [{"labels": "{}", "value": count}],
            }
            for alert, count in expected.items()
        ],
    }
    path = folder / "alerts.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    promtool("test", "rules", str(path))


def test_one_program_that_is_gone_is_one_alert(tmp_path: Path) -> None:
    """Also when it was the only one.  Of two, each has its own.

    Guard: `unless` behind `absent`; without it the only program fires twice.
    """
    gone = {"up": "1x5 0x30", "penstock_database_up": "1x5 stale"}
    for instances in ("a",), ("a", "b"):
        series = [
            (f'{name}{{job="penstock",instance="{each}"}}', values)
            for each in instances
            for name, values in gone.items()
        ]
        counted(tmp_path, series, {"PenstockProgramAway": len(instances)})


def test_dead_letters_are_told_while_nobody_says_how_many(tmp_path: Path) -> None:
    """They are still there when the programs are gone.  What a living program says comes first.

    Guard: `last_over_time`; without it the alert ends with the program that told of them.
    """
    letters = 'penstock_dead_letters{job="penstock",instance="%s",subscription="billing"}'
    dying = (letters % "a", "3x5 stale")
    counted(tmp_path, [dying], {"PenstockDeadLetters": 1})
    counted(tmp_path, [dying, (letters % "b", "0x30")], {"PenstockDeadLetters": 0})
    counted(tmp_path, [dying, (letters % "b", "4x30")], {"PenstockDeadLetters": 1})


def test_no_alert_fires_at_its_limit(tmp_path: Path) -> None:
    """Guard: the limit and the time of each rule."""
    raised(tmp_path, place=1, expected=0)


def test_each_alert_names_its_section() -> None:
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook"] == f"docs/reference/alerts.md#{name.lower()}"


def test_the_doctor_names_sections_that_exist() -> None:
    """Guard: the table of alerts in penstock/doctor/findings.py."""
    assert set(ALERTS.values()) <= set(alerts())
    for check in ALERTS:
        found = warning(check, "what", "command")
        assert found.page == f"docs/reference/alerts.md#{ALERTS[check].lower()}"
    assert error("server", "what", "command").page == ""


def test_rules_and_dashboard_read_only_what_is_exported() -> None:
    """Guard: a metric that is renamed takes its alerts and panels with it."""
    expressions = [rule["expr"] for rule in alerts().values()]
    expressions += [target["expr"] for panel in panels() for target in panel["targets"]]
    named = {name for each in expressions for name in METRIC.findall(each)}
    assert named
    assert named <= EXPORTED
    assert METRIC.findall("penstock_nothing > 1")[0] not in EXPORTED


def panels() -> list[dict[str, Any]]:
    """The panels that show something."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [each for each in found if each["type"] != "row"]


def test_the_dashboard_is_whole() -> None:
    everything = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    assert len({each["id"] for each in everything}) == len(everything)
    for one, other in itertools.combinations((each["gridPos"] for each in everything), 2):
        assert (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )  # fmt: skip
    for each in panels():
        assert each["title"]
        assert each["description"]
        assert each["fieldConfig"]["defaults"]["unit"]
