"""The demo: a bank driven by pgbench, followed by consumers that are killed and paused."""
