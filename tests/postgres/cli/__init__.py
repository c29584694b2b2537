"""The command, as only PostgreSQL has it."""

from __future__ import annotations
