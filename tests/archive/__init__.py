"""Seal, archive, backfill and clean."""

from __future__ import annotations
