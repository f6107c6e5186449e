"""Says what is wrong with an installation, a node or a site, before a job finds out."""
