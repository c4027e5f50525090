"""Names of the tensors that travel: part of the wire contract (docs/wire-contract.md, docs/video.md)."""

from __future__ import annotations

IMAGE = "image"
PIXELS = "pixels"
SCORES = "scores"
CLASS_IDS = "class_ids"
LABELS = "labels"
MATTE = "matte"
VIDEO = "video"
MESSAGE = "message"
EVENT = "event"
BOXES = "boxes"
IMAGE_SIZE = "image_size"
EMBEDDING = "embedding"
MASKS = "masks"
QUADS = "quads"
TEXTS = "texts"
DEGREES = "degrees"
LEFT_OUT = "left_out"
CANDIDATES = ("candidate_boxes", "candidate_scores", "candidate_classes")
"""What a detector's network gives the postprocessing, whatever its family."""
