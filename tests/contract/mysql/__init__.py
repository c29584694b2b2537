"""What only MySQL and MariaDB have."""

from __future__ import annotations
