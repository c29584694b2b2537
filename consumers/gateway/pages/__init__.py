"""The page on the admin port: what is in the database, why it does not move, and what mends it."""
