"""Streams decoded while they come, for serving."""
