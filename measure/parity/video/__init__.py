"""Frames of clips in the place of photos: how video becomes RGB, by our code, a server and other libraries."""
