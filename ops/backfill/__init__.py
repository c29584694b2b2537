"""What was lost or dropped is brought again: copies, log epochs in SQL, a window for a sink."""
