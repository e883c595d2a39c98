"""Claims of speed and memory, each measured in one run against a peer or a floor."""
