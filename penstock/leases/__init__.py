"""Which consumer holds which partition, and for how long: keepers, heartbeats, fair shares."""

from __future__ import annotations
