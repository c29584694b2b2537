"""Publishing, in the application's own transaction."""

from __future__ import annotations
