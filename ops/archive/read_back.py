"""The two ways in which copies are read back: in Spark's tasks, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ops.archive.copy_readings import CopyReading, Reader
from penstock.archive.copies import key_of
from penstock.archive.targets import Target
from penstock.database import connect
from penstock.errors import TargetUnavailable
from penstock.records import LogEpoch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_reader(spark: Callable[[], SparkSession], url: str) -> Reader:
    """Reads with Spark, which is started by the first copy that there is to read."""

    def read(target: Target, epochs: Sequence[LogEpoch]) -> Sequence[CopyReading]:
        # Imported here: without pyspark and deltalake every other run starts a second sooner.
        from ops.archive.archiving import read_epochs
        from penstock.archive.markers import require_target

        require_target(url, target)  # before a JVM starts for nothing
        return read_epochs(spark(), url, target, epochs)

    return read


def plain_reader(url: str) -> Reader:
    """Reads in this process, one copy after the other, without a session of Spark."""

    def read(target: Target, epochs: Sequence[LogEpoch]) -> Sequence[CopyReading]:
        from ops.archive.copying import recorded_plans
        from ops.archive.foreign import adopt
        from ops.archive.tombstones import require_ended
        from ops.archive.verify import read_copy
        from penstock.archive.markers import require_target

        require_target(url, target)
        adopt(url, epochs[0].topic, target)
        plans = recorded_plans(url, target, epochs)
        readings = [read_copy(plans[key_of(epoch)], target) for epoch in epochs]
        if any(each.unavailable for each in readings):
            require_target(url, target)
            raise TargetUnavailable(
                f"the archive target {target.name} was away while it was read", hint="run it again"
            )
        with connect(url) as connection:
            require_ended(connection, epochs[0].topic, readings)
        return readings

    return read
