"""The upkeep service, on every engine."""

from __future__ import annotations
