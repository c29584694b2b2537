"""Other systems that keep messages in PostgreSQL, measured in the same run on the same server."""

from __future__ import annotations
