"""The consumer, as only PostgreSQL has it."""

from __future__ import annotations
