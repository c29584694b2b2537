"""The canary: one event that goes the whole way, as an asset with the check of its flight."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from dagster_project import checks
from dagster_project.catalogue import Catalogue
from dagster_project.common import HOUSE_GROUP, code_of, of_database
from ops.canary import fly
from ops.policies.policy import FOLLOWS_ANOTHER, follows
from ops.probes import END_TO_END, ProbeVerdict, flown
from resources.database import DatabaseResource


def build(catalogue: Catalogue) -> list[dg.AssetsDefinition]:
    """The canary, where the policy file names its topic."""
    return [_canary(catalogue)] if catalogue.policies.canary else []


def _canary(catalogue: Catalogue) -> dg.AssetsDefinition:
    topic, key = catalogue.policies.canary, catalogue.house("canary")

    @dg.asset(
        key=key,
        group_name=catalogue.group(HOUSE_GROUP),
        kinds={catalogue.kind},
        check_specs=[dg.AssetCheckSpec(END_TO_END.name, asset=key, description=END_TO_END.about)],
        metadata={"penstock/topic": topic, **code_of(_canary)},
        description=f"One event goes through {topic}: it is published, sequenced, and consumed "
        "by the subscription `canary`, as events of applications are. Each part is measured.",
    )
    @of_database(catalogue.database)
    def canary(
        database: DatabaseResource,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        policies = database.policies()
        with database.connect() as connection:
            is_followed = follows(connection, policies)
        verdict = ProbeVerdict(True, {"note": f"{FOLLOWS_ANOTHER}: none was sent"})
        if is_followed:
            limit = policies.limits.end_to_end
            verdict = flown(fly(database.url(), topic, limit_seconds=limit))
        yield dg.MaterializeResult(metadata=checks.metadata_of(verdict))
        yield checks.result_of(verdict, key, END_TO_END.name)

    return canary
