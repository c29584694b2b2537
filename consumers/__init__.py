"""What runs all the time: the daemon with its consumers, queues, sequencer, relays and sweep."""
