"""Who holds which partition, and for how long: keepers of leases, heartbeats, fair shares."""

from __future__ import annotations
