"""Relays to real sinks, under kills and pauses."""

from __future__ import annotations
