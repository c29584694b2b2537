"""Namespaces, topics, rights and walls, as only PostgreSQL has it."""

from __future__ import annotations
