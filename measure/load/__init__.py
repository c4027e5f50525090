"""Load on a running server, and what it shows: perf_analyzer, our own client, and spreads over rounds."""
