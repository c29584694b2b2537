"""A real Apache Pulsar broker from Maven Central, for tests and demos.

``python -m tools.pulsar fetch | start | stop | status``; in code :class:`PulsarStandalone`.
"""

from __future__ import annotations

from tools.pulsar.errors import PulsarUnavailable
from tools.pulsar.fetch import fetch, fetched
from tools.pulsar.standalone import PulsarStandalone

__all__ = ["PulsarStandalone", "PulsarUnavailable", "fetch", "fetched"]
