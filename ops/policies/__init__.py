"""The policy file, and the database that follows it."""
