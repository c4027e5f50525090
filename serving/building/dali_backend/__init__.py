"""Repositories for unmodified Triton containers: DALI's own backend, and no Python of ours while it serves."""
