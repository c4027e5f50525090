"""What happens after the network, in NumPy alone: network outputs to the arrays that a pipeline returns."""

from postprocess.classification import top_k
from postprocess.labels import read_labels

__all__ = ["read_labels", "top_k"]
