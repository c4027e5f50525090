"""Video streams in the server: packets in, results out, in order, within bounds."""
