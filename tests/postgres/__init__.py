"""What only PostgreSQL has, in folders named as those of penstock."""

from __future__ import annotations
