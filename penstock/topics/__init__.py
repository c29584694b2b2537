"""Namespaces and topics: their names, rights, and how a key chooses its partition."""

from __future__ import annotations
