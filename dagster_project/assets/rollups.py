"""Rollup: the many small files of a closed day become few large ones."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import dagster as dg

from dagster_project import common
from dagster_project.catalogue import Catalogue
from dagster_project.common import of_database, table
from ops.policies.settings import TopicPolicy
from penstock.archive.targets import Target
from penstock.errors import lasts
from resources.database import DatabaseResource
from resources.targets import ArchiveTargetResource

ROWS_UNCHANGED = "rows_unchanged"

#: Twice an hour, the closed days of which something was archived since they were rolled up.
ROLLUP_CONDITION = (
    dg.AutomationCondition.cron_tick_passed("13,43 * * * *")
    & ~dg.AutomationCondition.in_progress()
    & ~dg.AutomationCondition.any_deps_in_progress()
    & dg.AutomationCondition.any_deps_match(~dg.AutomationCondition.missing())
    & (
        (dg.AutomationCondition.missing() & ~dg.AutomationCondition.execution_failed())
        | dg.AutomationCondition.any_deps_updated().since_last_handled()
        | (
            dg.AutomationCondition.cron_tick_passed("13 * * * *")
            & dg.AutomationCondition.execution_failed()
        )
    )
).with_label("a closed day was archived and not rolled up")


def build(catalogue: Catalogue) -> list[dg.AssetsDefinition]:
    """A rollup for each topic that the policy file archives."""
    return [_rollup(policy, catalogue) for policy in catalogue.archived()]


def _rollup(policy: TopicPolicy, catalogue: Catalogue) -> dg.AssetsDefinition:
    topic = policy.topic
    key = catalogue.key(topic, "rollup")

    with common.beta_allowed():

        @dg.asset(
            key=key,
            deps=[catalogue.key(topic, "archive")],
            partitions_def=catalogue.days,
            backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=7),
            automation_condition=ROLLUP_CONDITION,
            retry_policy=common.RETRY,
            pool=common.SPARK_POOL,
            kinds={"deltalake"},
            check_specs=[_rows_unchanged(key)],
            description=catalogue.about(
                f"The archive of {topic} by the closed day of sealing: its small files are "
                "written again as files of some 128 MB. They are read back and compared with the "
                "seals before they take the place of the small ones.",
            ),
            **catalogue.options(topic, _rollup),
        )
        @of_database(catalogue.database)
        def rollup(
            context: dg.AssetExecutionContext,
            database: DatabaseResource,
            targets: ArchiveTargetResource,
        ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
            days = {dt.date.fromisoformat(name) for name in context.partition_keys}
            places, unnamed = targets.usable(policy.archive)
            run = _RollupRun(database.url(), topic, days)
            for target in places:
                run.roll(target)
            yield dg.MaterializeResult(metadata=run.metadata())
            yield run.check(key)
            for why in (*unnamed.values(), *run.failed):
                context.log.error(why)
            if unnamed or run.failed:
                said = "\n".join([*unnamed.values(), *run.failed])
                raise dg.Failure(said, allow_retries=not run.lasts)

    return rollup


class _RollupRun:
    """The rollup of some days of a topic, target after target; one that fails stops no other."""

    def __init__(self, url: str, topic: str, days: set[dt.date]) -> None:
        self._url, self._topic, self._days = url, topic, days
        self._made: list[tuple[Any, ...]] = []
        self._changed: list[tuple[Any, ...]] = []
        self.failed: list[str] = []
        #: Whether none of it heals by itself; a target without a place does not.
        self.lasts = True

    def roll(self, target: Target) -> None:
        """Roll up the days on one target, and compare what is recorded before and after."""
        # Imported here: deltalake is needed for nothing else in this process.
        from ops.archive.rollup import events_of_days, rollup

        try:
            before = events_of_days(self._url, self._topic, target, self._days)
            made = rollup(self._url, self._topic, target, days=self._days)
            after = events_of_days(self._url, self._topic, target, self._days)
        except Exception as error:
            self.failed.append(f"{self._topic} on {target.name}: {error}")
            self.lasts = self.lasts and lasts(error)
            return
        self._made += [
            (target.name, m.sealed_date, m.file, m.replaced_files, m.events, m.size) for m in made
        ]
        if before != after:
            self._changed.append((target.name, before, after))

    def metadata(self) -> dict[str, Any]:
        """The files that were made."""
        columns = ("target", "day", "file", "instead of", "events", "bytes")
        return {"files made": len(self._made), "files": table(columns, self._made)}

    def check(self, key: dg.AssetKey) -> dg.AssetCheckResult:
        """Whether each target has recorded as many events as before."""
        columns = ("target", "events before", "events now")
        return dg.AssetCheckResult(
            asset_key=key,
            check_name=ROWS_UNCHANGED,
            passed=not self._changed,
            metadata={"changed": table(columns, self._changed)} if self._changed else {},
        )


def _rows_unchanged(key: dg.AssetKey) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        ROWS_UNCHANGED,
        asset=key,
        blocking=True,
        description="As many events are recorded on each target as before the rollup. Each new "
        "file was read back and compared with the seals before.",
    )
