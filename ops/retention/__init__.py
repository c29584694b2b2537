"""What is removed: the reading that must come first, and the tables of what is gone."""
