"""The tests: a package, so that helpers are imported by their name."""

from __future__ import annotations
