"""Connections, migrations, plans, faults and limits, on every engine."""

from __future__ import annotations
