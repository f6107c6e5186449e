"""From a grid to run folders: cells, shapes, scripts, and the transports that run them. Imports no framework."""
