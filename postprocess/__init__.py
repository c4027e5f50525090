"""Turns network outputs into the arrays that a pipeline returns. This package itself needs NumPy only."""
