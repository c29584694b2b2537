"""What sets up servers and checks the house.

``environment``, ``debian`` and ``java`` run before anything is installed: standard library only.
"""

from __future__ import annotations
