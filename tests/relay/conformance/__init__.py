"""What every sink has to show, whatever it is.  A sink brings an adapter (`under_test`)."""

from __future__ import annotations
