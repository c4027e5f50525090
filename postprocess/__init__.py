"""What happens after the network, in NumPy alone: network outputs to the arrays that a pipeline returns."""

from onestream.postprocess.classification import top_k
from onestream.postprocess.labels import read_labels

__all__ = ["read_labels", "top_k"]
