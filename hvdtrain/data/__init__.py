"""Data for ranks: shards of indices, and readers of what the studies train on."""
