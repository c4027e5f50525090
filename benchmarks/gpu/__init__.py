"""Benchmarks on a GPU: preprocessing against the host's cores, the fused form against its parts, and both served."""
