"""The duties over many units at once: databases, topics, ranges; in this process or on Spark.

A duty is a plain function over a unit.  Every unit is fenced in SQL, so it may be repeated.
"""

from __future__ import annotations
