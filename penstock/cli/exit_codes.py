"""Exit codes of the penstock command."""

from __future__ import annotations

EXIT_NO = 1
EXIT_USAGE = 2
EXIT_FAILED = 3
