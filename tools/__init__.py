"""What sets up servers and checks the house.

``environment``, ``debian`` and ``java`` run before anything is installed, so they use the standard
library only.
"""

from __future__ import annotations
