"""How lag and rates went, out of the reports on health that Dagster has kept."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import dagster as dg

from dagster_project.common import plot

#: Two days of hours.
MOST_REPORTS = 48


def trends(
    instance: dg.DagsterInstance, health: dg.AssetKey, now: Mapping[str, float]
) -> dict[str, Any]:
    """Plots of the lag and of the events of a second, up to the figures of now.

    A line that is flat says nothing, so it is left out.
    """
    series = [*_earlier(instance, health, list(now)), (time.time(), dict(now))]
    waits = [figures["longest wait (s)"] for _, figures in series]
    rates = _rates([(at, figures["events ever"]) for at, figures in series])
    found: dict[str, Any] = {"events a second": round(rates[-1], 3)} if rates else {}
    for name, title, values in (
        ("lag", "longest wait of a subscription (s)", waits),
        ("rate", "events sequenced a second", rates),
    ):
        if len(set(values)) > 1:
            found[name] = dg.MetadataValue.md(plot(title, values))
    return found


def _rates(ever: Sequence[tuple[float, float]]) -> list[float]:
    return [
        max(0.0, (after - before) / (end - start))
        for (start, before), (end, after) in pairwise(ever)
        if end > start
    ]


def _earlier(
    instance: dg.DagsterInstance, health: dg.AssetKey, names: Sequence[str]
) -> list[tuple[float, dict[str, float]]]:
    """The figures of the reports before, the oldest first; one that lacks a figure is left out."""
    records = instance.fetch_materializations(health, limit=MOST_REPORTS).records
    found = []
    for record in reversed(records):
        event = record.asset_materialization
        kept = event.metadata if event else {}
        if all(name in kept for name in names):
            figures = {name: float(kept[name].value or 0) for name in names}  # type: ignore[arg-type]
            found.append((record.timestamp, figures))
    return found
