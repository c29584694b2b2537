"""Spark as Dagster sees it: dagster-pyspark's lazy session, configured by the environment.

``PENSTOCK_SPARK_REMOTE`` names a Spark Connect server, ``PENSTOCK_SPARK_MASTER`` a master; without
them Spark runs in this process.  ``PENSTOCK_SPARK_CONFIG`` is a JSON object of further settings.
They are read when a session is created.  They are not Dagster configuration, which would show them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import PrivateAttr

from ops.spark import local_session_config, starting
from penstock.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMOTE = "PENSTOCK_SPARK_REMOTE"
CONFIG = "PENSTOCK_SPARK_CONFIG"


class SparkResource(LazyPySparkResource):
    """A Spark session that is started by the first one who asks, and stopped when the run ends.

    A session that was there before, of a test or of a notebook, is used and left as it is.
    """

    spark_config: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    _is_ours: bool = PrivateAttr(default=False)

    def session(self) -> SparkSession:
        """The session of this process."""
        session: SparkSession = self.spark_session
        return session

    def _init_session(self) -> None:
        if self._spark_session is None:
            # Imported here: a code location without Java still loads.
            from dagster_pyspark.resources import spark_session_from_config
            from pyspark.sql import SparkSession

            self._is_ours = SparkSession.getActiveSession() is None
            settings = {**session_config(), **self.spark_config}
            with starting():
                self._spark_session = spark_session_from_config(settings)  # type: ignore[no-untyped-call]

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Stop the session if this resource has started it."""
        session, self._spark_session = self._spark_session, None
        if session is not None and self._is_ours:
            session.stop()


def session_config(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of the session: local ones, or those of a Spark Connect server."""
    environ = os.environ if environ is None else environ
    further = _further(environ.get(CONFIG, ""))
    remote = environ.get(REMOTE, "").strip()
    if remote:
        return {"spark.remote": remote, "spark.sql.session.timeZone": "UTC", **further}
    return {"spark.app.name": "penstock", **local_session_config(), **further}


def _further(text: str) -> dict[str, str]:
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        # The text is not repeated: it may hold keys.
        raise ConfigurationError(
            f"{CONFIG} is not a JSON object of strings",
            hint='write it like {"spark.executor.memory": "2g"}',
        )
    return found
