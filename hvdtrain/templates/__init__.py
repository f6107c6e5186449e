"""Jobs that `hvdtrain new` copies; each runs as it is."""
