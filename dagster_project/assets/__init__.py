"""The assets, each with the checks that it makes itself; further checks are in `checks.py`."""

from __future__ import annotations
