"""Spark: reading, streaming and writing a topic, archiving it, and reading the archive."""
