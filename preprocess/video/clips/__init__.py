"""Chosen frames of video files, for training."""
