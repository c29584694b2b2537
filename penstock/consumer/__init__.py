"""The consumer: reads a subscription, hands events to a handler, retries and commits."""

from __future__ import annotations
