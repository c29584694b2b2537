"""Posts what it reads to the webhook: a process of its own, so that who waits for it can end it.

It needs nothing but the standard library, so that it starts at once.  It never writes the address.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from typing import Any


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Where a redirect leads, it would be a GET, and the message is lost."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Go nowhere: then the redirect is an error like others."""


def main() -> None:
    """One attempt; exit code 1 with why it failed in a few words."""
    try:
        request = urllib.request.Request(
            os.environ["PENSTOCK_WEBHOOK_URL"],
            data=sys.stdin.buffer.read(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=float(sys.argv[1])):
            pass
    except urllib.error.HTTPError as error:
        sys.exit(f"it answered {error.code}")
    except Exception as error:
        # No text of the error: it may hold the address.
        cause = getattr(error, "reason", None)
        sys.exit(type(cause if isinstance(cause, Exception) else error).__name__)


if __name__ == "__main__":
    main()
