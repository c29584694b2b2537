"""Connections, migrations, plans, faults and limits, as only PostgreSQL has it."""

from __future__ import annotations
