"""Namespaces, topics, rights and walls, on every engine."""

from __future__ import annotations
