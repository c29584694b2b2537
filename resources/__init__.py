"""Dagster's view of the outside world: database, Spark, Pulsar and other sinks, archive targets."""

from __future__ import annotations
