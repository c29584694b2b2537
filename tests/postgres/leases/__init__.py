"""Leases, check-ins and fair shares, as only PostgreSQL has it."""

from __future__ import annotations
