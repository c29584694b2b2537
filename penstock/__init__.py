"""Penstock turns the database that an application already has into an event platform."""

from __future__ import annotations

__version__ = "0.1.0"
