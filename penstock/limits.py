"""The limits of names and events; lengths of text count Unicode code points."""

from __future__ import annotations

MAX_NAME = 500
MAX_ADDRESS = 4_000
MAX_NAMESPACE = MAX_ADDRESS - 2  # so that the shortest topic still fits below it
MAX_KEY = 255
MAX_TYPE = 255
MAX_CONTENT_TYPE = 255
MAX_CONSUMER_ID = 255
MAX_PARTITIONS = 65_536
MAX_HEADERS_BYTES = 65_536
MAX_HEADERS_DEPTH = 32
MAX_HEADER_DIGITS = 400
MAX_ATTEMPTS = 1_000
