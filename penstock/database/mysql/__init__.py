"""MySQL and MariaDB."""

from __future__ import annotations
