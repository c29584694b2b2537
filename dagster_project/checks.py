"""The checks: one op for each kind, over all topics, and not one for each topic.

What a check looks at is a probe of `ops.probes`, which `penstock verify` makes too.  What goes
wrong with one topic is its own failed check, and the others are still looked at.  Checks that a run
makes of its own work (copies_verified, rows_unchanged, guarded_drop) are with their assets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_project.catalogue import Catalogue
from dagster_project.common import of_database, table
from ops import probes
from ops.probes import Probe, ProbeVerdict, Table, World
from penstock.errors import error_text
from resources.database import DatabaseResource
from resources.targets import ArchiveTargetResource

#: The metadata of a verdict that the next look begins with.
KEPT = "whole up to"
#: The checks that go with an event without a run.  They cost a few queries for all topics together,
#: and one or two for each.
REPORTED = ("no_sequence_gap", "consumer_lag", "lease_coverage", "dead_letters", "backlog_age")
#: So many events of a log are looked at without a run; more are left to a run.
MOST_EVENTS = 1_000_000
#: One op looks at so many: Dagster needs the square of it to load a job.
SUBJECTS_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Kind:
    """A probe, and the assets of which it is a check, each with its topic or relay."""

    probe: Probe
    subjects: Mapping[dg.AssetKey, str]

    @property
    def name(self) -> str:
        """The name of the check."""
        return self.probe.name

    @property
    def op(self) -> str:
        """The name of its op: a relay has dead letters, as a topic has."""
        is_double = self.probe.scope == probes.RELAY and self.probe.name == "dead_letters"
        return "relay_dead_letters" if is_double else self.probe.name


def build(catalogue: Catalogue) -> list[dg.AssetChecksDefinition]:
    """Every kind that has something to look at, in lots: see SUBJECTS_AT_ONCE."""
    return [
        _definition(kind, lot, name, catalogue)
        for kind in kinds(catalogue)
        for name, lot in _lots(catalogue, kind)
    ]


def _lots(catalogue: Catalogue, kind: Kind) -> Iterator[tuple[str, dict[dg.AssetKey, str]]]:
    subjects, name = [*kind.subjects.items()], catalogue.named(f"check_{kind.op}")
    for start in range(0, len(subjects), SUBJECTS_AT_ONCE):
        lot = dict(subjects[start : start + SUBJECTS_AT_ONCE])
        yield f"{name}_{start // SUBJECTS_AT_ONCE + 1}" if start else name, lot


def kinds(catalogue: Catalogue) -> list[Kind]:
    """The kinds of checks."""
    subjects = {
        probes.HOUSE: {catalogue.house("sequence"): ""},
        probes.TOPIC: catalogue.keys("sequenced"),
        probes.SEALED: catalogue.keys("sealed"),
        probes.ARCHIVE: _archives(catalogue),
        probes.RELAY: {catalogue.relay_key(each.name): each.name for each in catalogue.relays()},
    }
    found = probes.probes(catalogue.policies.limits)
    return [Kind(each, subjects[each.scope]) for each in found]


def _archives(catalogue: Catalogue) -> dict[dg.AssetKey, str]:
    return {catalogue.key(each.topic, "archive"): each.topic for each in catalogue.archived()}


def _definition(
    kind: Kind, subjects: Mapping[dg.AssetKey, str], name: str, catalogue: Catalogue
) -> dg.AssetChecksDefinition:
    specs = [
        dg.AssetCheckSpec(
            kind.name,
            asset=key,
            blocking=kind.probe.blocking,
            description=kind.probe.about,
        )
        for key in subjects
    ]

    keys = {subject: dg.AssetCheckKey(key, kind.name) for key, subject in subjects.items()}

    @dg.multi_asset_check(name=name, specs=specs, can_subset=True)
    @of_database(catalogue.database)
    def check(
        context: dg.AssetCheckExecutionContext,
        database: DatabaseResource,
        targets: ArchiveTargetResource,
    ) -> Iterator[dg.AssetCheckResult]:
        with database.connect() as connection:
            world = World(
                connection,
                database.url(),
                catalogue.policies,
                targets.usable,
                lambda subject: kept(context.instance, keys[subject]),
            )
            tell = kind.probe.look(world)
            for key in context.selected_asset_check_keys:
                subject = subjects[key.asset_key]
                if not world.is_there(kind.probe, subject):
                    # Nothing was looked at, so nothing has passed.
                    context.log.info("the topic of %s does not exist yet", subject)
                    continue
                found = _told(context, tell, subject)
                yield result_of(found, key.asset_key, key.name)

    return check


class Verdicts:
    """The checks of what is reported without a run.

    Dagster shows what was found of the last materialization only.  So each that is reported has its
    checks with it: else a failure would vanish with it, until the next run looks.
    """

    def __init__(
        self, catalogue: Catalogue, context: dg.SensorEvaluationContext, connection: Any
    ) -> None:
        # Its `instance` opens Dagster's storage, so it is asked for only when something is new.
        self._catalogue, self._context, self._connection = catalogue, context, connection
        self._looks: dict[str, Callable[[str], ProbeVerdict]] = {}

    def of(
        self, key: dg.AssetKey, subject: str, scope: str = probes.TOPIC
    ) -> Iterator[dg.AssetCheckEvaluation]:
        """What its checks find now."""
        for probe in probes.probes(self._catalogue.policies.limits):
            if probe.scope == scope and probe.name in REPORTED:
                found = self._look(probe, key)(subject)
                name = dg.AssetCheckKey(key, probe.name)
                if found is not probes.TOO_MUCH:
                    yield _evaluation(name, result_of(found), is_blocking=probe.blocking)
                elif (last := last_verdict(self._context.instance, name)) and not last.passed:
                    yield _evaluation(name, last, is_blocking=probe.blocking)

    def _look(self, probe: Probe, key: dg.AssetKey) -> Callable[[str], ProbeVerdict]:
        """One look for all; `no_sequence_gap` goes on where the last look at its asset ended."""
        is_own = probe.name == probes.NO_SEQUENCE_GAP
        name = f"{probe.scope} {probe.name} {key.to_user_string() if is_own else ''}"
        if name not in self._looks:
            check = dg.AssetCheckKey(key, probe.name)
            world = World(
                self._connection,
                "",
                self._catalogue.policies,
                lambda _: ([], {}),
                lambda _: kept(self._context.instance, check),
                MOST_EVENTS,
            )
            self._looks[name] = probe.look(world)
        return self._looks[name]


def _evaluation(
    key: dg.AssetCheckKey,
    told: dg.AssetCheckResult | dg.AssetCheckEvaluation,
    *,
    is_blocking: bool,
) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=told.passed,
        metadata=told.metadata,
        severity=told.severity,
        blocking=is_blocking,
    )


def _told(
    context: dg.AssetCheckExecutionContext, tell: Callable[[str], ProbeVerdict], subject: str
) -> ProbeVerdict:
    """The verdict; what goes wrong with one subject stops no other."""
    try:
        return tell(subject)
    except Exception as error:
        context.log.exception(subject)
        return ProbeVerdict(passed=False, found={"error": error_text(error)})


def result_of(
    verdict: ProbeVerdict, asset: dg.AssetKey | None = None, name: str | None = None
) -> dg.AssetCheckResult:
    """A verdict as Dagster shows it."""
    severity = dg.AssetCheckSeverity.ERROR if verdict.is_error else dg.AssetCheckSeverity.WARN
    return dg.AssetCheckResult(
        asset_key=asset,
        check_name=name,
        passed=verdict.passed,
        severity=severity,
        metadata=metadata_of(verdict),
    )


def metadata_of(verdict: ProbeVerdict) -> dict[str, Any]:
    """What a probe has found, as metadata."""
    found: dict[str, Any] = {
        name: table(value.columns, value.rows) if isinstance(value, Table) else value
        for name, value in verdict.found.items()
    }
    return found if verdict.kept is None else {**found, KEPT: dg.MetadataValue.json(verdict.kept)}


def kept(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> Mapping[str, Any] | None:
    """What the last verdict of a check has kept for the next look; nothing after a failure."""
    verdict = last_verdict(instance, key)
    found = verdict.metadata.get(KEPT) if verdict and verdict.passed else None
    value = found.value if isinstance(found, dg.JsonMetadataValue) else None
    return value if isinstance(value, Mapping) else None


def last_verdict(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey
) -> dg.AssetCheckEvaluation | None:
    """What a check has told last."""
    # Not exported by `dagster`.  A look that is under way is planned: it has no verdict.
    from dagster._core.storage.asset_check_execution_record import (
        COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES as TOLD,
    )

    storage = instance.event_log_storage
    records = storage.get_asset_check_execution_history(key, limit=1, status=TOLD)
    return records[0].evaluation if records else None
