"""The archive on every engine."""

from __future__ import annotations
