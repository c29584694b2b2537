"""The log: sequences, fetching, restores, as only PostgreSQL has it."""

from __future__ import annotations
