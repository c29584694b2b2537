"""A module that cannot be imported, as a handler's module may be."""

from __future__ import annotations

raise RuntimeError("the first line\nand a second one")
