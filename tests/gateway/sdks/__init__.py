"""The SDKs of AWS against the gateway: programs in their languages."""

from __future__ import annotations
