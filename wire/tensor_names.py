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
CHARACTER_SCORES = "character_scores"
CANDIDATES = ("candidate_boxes", "candidate_scores", "candidate_classes")
"""What a detector's network gives the postprocessing, whatever its family."""
CTC = ("ctc_classes", "ctc_scores")
"""What a text recognizer gives the postprocessing: the best class of each step, and its probability."""
