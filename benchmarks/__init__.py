"""What Penstock costs, compared with the same rows in a bare table, in the same run."""

from __future__ import annotations
