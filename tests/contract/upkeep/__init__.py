"""The log: sequences, fetching, restores, on every engine."""

from __future__ import annotations
