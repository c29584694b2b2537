"""The one place in which Dagster calls the archive: log epochs of a topic to their targets."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ops.policies.file import TopicPolicy
from penstock.archive.copies import EpochKey
from penstock.errors import ConfigurationError
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
    """Bring log epochs to every target of the policy; returns what went wrong.

    A target or a log epoch that fails stops no other.  What was copied is recorded in the database.
    With ``repair`` what is recorded already is read back too, and made again if it is damaged.
    """
    if not epochs:
        return []
    # Imported here: without pyspark and deltalake every other run starts a second sooner.
    from ops.archive.archiving import archive_epochs

    places, unnamed = targets.usable(policy.archive)
    failed: list[Exception] = [ConfigurationError(why) for why in unnamed.values()]
    for target in places:
        others = [each for each in places if each != target]
        try:
            archive_epochs(
                spark.session(), url, policy.topic, target, epochs, repair=repair, sources=others
            )
        except Exception as error:
            logger.exception("%s on %s", policy.topic, target.name)
            failed.append(error)
    return failed
