"""When things run: assets, checks, jobs, schedules and sensors around the functions of ``ops``.

No SQL and no protocol lives here.  A day without Dagster loses no event: the daemons go on.
"""

from __future__ import annotations
