"""Consuming a queue: receiving, handing out, settling."""

from __future__ import annotations
