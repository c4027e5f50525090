"""Shared by clips and streams: colour, orientation, bounds, and a definition's pixels of a frame."""
