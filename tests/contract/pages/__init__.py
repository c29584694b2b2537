"""The code of the pages runs as it stands there, on every engine."""
