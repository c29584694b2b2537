"""A module that cannot be imported, as the module of a handler may be."""

from __future__ import annotations

raise RuntimeError("the first line\nand a second one")
