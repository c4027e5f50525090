"""Candidates of a detector to boxes in pixels of the picture: suppression, inverse geometry, clipping."""

from onestream.postprocess.detection.detect import Detections, detect
from onestream.postprocess.detection.suppression import suppress

__all__ = ["Detections", "detect", "suppress"]
