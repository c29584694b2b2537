"""From the log to a sink, in recorded blocks."""
