"""The log as a Spark data source: ``spark.read.format("penstock")``.

    import penstock.spark

    penstock.spark.register(spark)
    spark.read.format("penstock").option("topic", "bank/accounts").load()

It needs the extra ``spark`` and nothing else of the platform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from penstock.spark.drift import FieldDrift


def register(spark: SparkSession) -> None:
    """Make the format ``penstock`` known to a session; a second call changes nothing.

    ConfigurationError when the session's workers run a Python that has no Penstock.
    """
    try:
        import pyarrow  # noqa: F401 (looked for, so that the error comes here and not in a task)
        import pyspark  # noqa: F401
    except ImportError as error:
        raise MissingExtra.of(str(error.name), "penstock[spark]") from None
    from penstock.spark.source import PenstockSource
    from penstock.spark.workers import require_workers

    require_workers(spark)
    # A write looks a data source up in the thread's active session only.  A thread that did not
    # build the session has none until it makes a first data frame.
    spark.createDataFrame([], "nothing int")
    spark.dataSource.register(PenstockSource)


def schema_drift(
    spark: SparkSession,
    topic: str,
    schema: str | StructType,
    *,
    last: int = 1_000,
    **options: object,
) -> list[FieldDrift]:
    """Where the JSON payloads of a topic differ from a schema, in its last events or a range."""
    register(spark)
    from penstock.spark.drift import schema_drift as found

    return found(spark, topic, schema, last=last, **options)
