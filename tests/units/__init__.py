"""What needs no server."""

from __future__ import annotations
