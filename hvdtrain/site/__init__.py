"""The site profile: what is particular to one cluster, and nothing about a study."""
