"""Running consumers: an application's declarations, workers, the supervisor, asyncio."""

from __future__ import annotations
