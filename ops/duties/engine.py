"""Where units are worked off: in this process, or on Spark.  A decision without side effects."""

from __future__ import annotations

from penstock.errors import ConfigurationError

AUTO, SQL, SPARK = ENGINES = ("auto", "sql", "spark")

#: From so many units on, Spark is worth its start.  A JVM takes some five seconds and four of a
#: processor; this process does ten or more small units in a second.
UNITS_FOR_SPARK = 64
#: From so many events on, if there is more than one unit.  One process moves some 50,000 in a
#: second, so this is where a second core begins to save more than the start costs.
EVENTS_FOR_SPARK = 1_000_000


def choose(engine: str, units: int, events: int = 0) -> str:
    """SQL or SPARK for so many units, which have so many events to move."""
    if engine not in ENGINES:
        raise ConfigurationError(
            f"there is no engine {engine[:40]!r}", hint=f"choose one of: {', '.join(ENGINES)}"
        )
    if engine != AUTO:
        return engine
    is_much = units >= UNITS_FOR_SPARK or (units > 1 and events >= EVENTS_FOR_SPARK)
    return SPARK if is_much else SQL
