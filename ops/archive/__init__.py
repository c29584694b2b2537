"""Copies of log epochs on targets: made with Spark, read back, recorded, rolled up."""
