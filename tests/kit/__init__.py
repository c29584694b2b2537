"""What tests of several folders share: logs, streams, names and storage to work on."""

from __future__ import annotations
