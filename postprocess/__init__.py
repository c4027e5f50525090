"""Turns network outputs into the arrays that a pipeline returns. This package itself needs NumPy only."""

from onestream.postprocess.classification import top_k
from onestream.postprocess.labels import read_labels

__all__ = ["read_labels", "top_k"]
