"""Leases, check-ins and fair shares, on every engine."""

from __future__ import annotations
