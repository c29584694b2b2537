"""Log epochs and relays, on every engine."""

from __future__ import annotations
