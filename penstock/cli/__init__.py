"""The ``penstock`` command; the only part of the package that needs typer and rich."""

from __future__ import annotations
