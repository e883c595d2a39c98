"""Posteriors: distributions over networks, all answering the same calls."""
