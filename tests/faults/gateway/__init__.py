"""The gateway under attack: it is killed, its database too, and clients go on."""

from __future__ import annotations
