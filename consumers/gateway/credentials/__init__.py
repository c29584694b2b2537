"""Who calls: pure functions over what a request shows.  They know no server and no database."""
