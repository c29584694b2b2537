"""The one place in which Dagster calls the archive: log epochs of a topic to their targets."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ops.policies.settings import TopicPolicy
from penstock.archive.copies import EpochKey
from resources.spark import SparkResource
from resources.targets import ArchiveTargetResource

logger = logging.getLogger("penstock.dagster")


def bring(
    url: str,
    policy: TopicPolicy,
    epochs: Sequence[EpochKey],
    *,
    spark: SparkResource,
    targets: ArchiveTargetResource,
    repair: bool,
) -> list[Exception]:
    """Bring log epochs to the targets of their policy; returns what went wrong.

    A target or a log epoch that fails stops no other, and one that is away is replaced by the next.
    What was copied is recorded in the database.  With ``repair`` what is recorded already is read
    back too, and made again if it is damaged.
    """
    if not epochs or policy.placement is None:
        return []
    # Imported here: without pyspark and deltalake every other run starts a second sooner.
    from ops.archive.placing import place_copies

    try:
        placed = place_copies(
            spark.session,
            url,
            policy.topic,
            policy.placement,
            targets.target,
            epochs=epochs,
            repair=repair,
        )
    except Exception as error:
        logger.exception(policy.topic)
        return [error]
    for why in placed.away.values():
        logger.warning("%s: %s", policy.topic, why)
    return []
