"""The verbs of the platform, one folder each: plain functions, with Spark where data moves.

They know neither Dagster nor the daemons; both call the same functions.
"""

from __future__ import annotations
