"""How long calls of the database take, for a program that wants to know.

Nobody looks at the clock until :data:`observer` is set; ``penstock.upkeep.operations`` does that.
"""

from __future__ import annotations

from collections.abc import Callable

#: The statements whose time is told: what applications and consumers wait for.
TIMED = frozenset({"publish", "publish_batch", "poll", "commit"})

#: Gets the name of the statement and its seconds, also of one that has failed.
observer: Callable[[str, float], None] | None = None
