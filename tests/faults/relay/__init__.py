"""Relays under attack: two of them, killed, paused, and their broker restarted."""

from __future__ import annotations
