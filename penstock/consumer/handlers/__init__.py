"""Calling handlers: options, executors, and the transaction that a handler shares."""

from __future__ import annotations
