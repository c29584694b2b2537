"""Subscriptions, policies, dead letters and the inbox, on every engine."""

from __future__ import annotations
