"""Consuming a stream: reading, handing out, retrying, committing."""

from __future__ import annotations
