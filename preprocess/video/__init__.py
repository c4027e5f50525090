"""Clips of video: which frames, decoding, and colour. No PyTorch in it."""
