"""What Penstock costs, measured against the same rows in a bare table, in the same run."""

from __future__ import annotations
