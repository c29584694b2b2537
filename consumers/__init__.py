"""What runs all the time: the daemon with its consumers, sequencer, relays and sweep."""
