"""A small detector: the first blocks of EfficientNet-Lite0, which stay as they are, and a head that is trained.

Without anchors, as FCOS (Z. Tian et al., 2019): each cell of two grids says how far the sides of an object's box are
away from its centre.
"""

from __future__ import annotations

import numpy as np
import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import nn
from torch.nn import functional

from onestream.pipelines.networks.efficientnet_lite import fetch_weights
from onestream.pipelines.networks.legacy_pickle import read_legacy_checkpoint

STRIDES = (8, 16)
BLOCKS = (5, 11)
"""After so many of EfficientNet-Lite0's blocks a cell is 8 and 16 pixels wide."""
CHANNELS = (40, 112)
WIDTH = 64
SMALL = 32
"""Objects whose longer side in pixels of the network's input is less belong to the finer grid."""
REACH = 1.5
"""Cells around an object's centre that are to find it."""
SIDES_WEIGHT = 2.0
"""Of the boxes' loss, beside that of the scores."""
PRIOR = 0.01
"""The score of everything before training (T.-Y. Lin et al., Focal Loss, 2017, section 4.1)."""


class Detector(nn.Module):
    """Images (batch, 3, height, width) to ``[batch, 4 + classes, cells]``, YOLO's layout.

    Rows 0 to 3 are a box's centre x and y, width and height in pixels of the network's input; the others are the score
    of each class, 0 to 1.
    """

    def __init__(self, classes: int, size_hw: tuple[int, int]) -> None:
        super().__init__()
        whole = EfficientNet.from_name("efficientnet-lite0")
        weights = read_legacy_checkpoint(fetch_weights())
        whole.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
        stem = nn.Sequential(whole._conv_stem, whole._bn0, whole._swish)
        self.backbone = nn.ModuleList([stem, *list(whole._blocks)[: BLOCKS[-1]]]).requires_grad_(False)
        self.lateral = nn.ModuleList(nn.Conv2d(channels, WIDTH, 1) for channels in CHANNELS)
        self.tower = nn.Sequential(*(layer for _ in range(2) for layer in _convolution()))
        self.scores, self.sides = nn.Conv2d(WIDTH, classes, 1), nn.Conv2d(WIDTH, 4, 1)
        nn.init.constant_(self.scores.bias, -float(np.log((1 - PRIOR) / PRIOR)))
        centers, strides = zip(*(_grid(size_hw, stride) for stride in STRIDES), strict=True)
        self.register_buffer("centers", torch.cat(centers), persistent=False)
        self.register_buffer("strides", torch.cat(strides), persistent=False)

    def train(self, mode: bool = True) -> Detector:
        """As of every module, but that the backbone keeps its statistics."""
        super().train(mode)
        self.backbone.eval()
        return self

    def found(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Boxes (batch, cells, 4), x0 y0 x1 y1, and the logit of each class (batch, cells, classes)."""
        features, kept = images, []
        for number, block in enumerate(self.backbone):
            features = block(features)
            if number in BLOCKS:
                kept.append(features)
        fine, coarse = (lateral(one) for lateral, one in zip(self.lateral, kept, strict=True))
        fine = fine + functional.interpolate(coarse, scale_factor=2.0, mode="nearest")
        towers = [self.tower(fine), self.tower(coarse)]
        logits = torch.cat([self.scores(one).flatten(2) for one in towers], 2).transpose(1, 2)
        sides = torch.cat([functional.softplus(self.sides(one)).flatten(2) for one in towers], 2).transpose(1, 2)
        sides = sides * self.strides[:, None]
        return torch.cat([self.centers - sides[..., :2], self.centers + sides[..., 2:]], 2), logits

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """See the class."""
        boxes, logits = self.found(images)
        first, last = boxes[..., :2], boxes[..., 2:]
        return torch.cat([(first + last) / 2, last - first, logits.sigmoid()], 2).transpose(1, 2)

    def loss(self, images: torch.Tensor, boxes: list[torch.Tensor], class_ids: list[torch.Tensor]) -> torch.Tensor:
        """Focal loss of the scores and GIoU loss of the boxes, for each cell that is to find an object."""
        predicted, logits = self.found(images)
        wanted = torch.zeros_like(logits)
        wanted_boxes, to_find = torch.zeros_like(predicted), torch.zeros(predicted.shape[:2], dtype=torch.bool)
        for number, (truth, classes) in enumerate(zip(boxes, class_ids, strict=True)):
            # The smallest come last, so that they keep the cells that they share with larger ones.
            sizes = truth[:, 2:] - truth[:, :2]
            for place in sizes.prod(1).argsort(descending=True).tolist():
                cells = self._cells(truth[place])
                to_find[number, cells] = True
                wanted_boxes[number, cells] = truth[place]
                wanted[number, cells] = functional.one_hot(classes[place], logits.shape[2]).to(logits)
        count = max(1, int(to_find.sum()))
        sides = (1 - overlaps(predicted[to_find], wanted_boxes[to_find])[1]).sum()
        return (focal_loss(logits, wanted) + SIDES_WEIGHT * sides) / count

    def _cells(self, box: torch.Tensor) -> torch.Tensor:
        """The cells that are to find an object: of its grid, those near its centre, or the nearest."""
        center, size = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
        own = self.strides == STRIDES[0 if float(size.max()) < SMALL else 1]
        distance = (self.centers - center).abs().amax(1) / self.strides
        inside = ((self.centers > box[:2]) & (self.centers < box[2:])).all(1)
        cells = own & inside & (distance < REACH)
        return cells if bool(cells.any()) else own & (distance == distance[own].min())


def focal_loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Cross entropy that counts what is right already less, summed (Focal Loss, equation 5, alpha 0.25, gamma 2)."""
    scores = logits.sigmoid()
    missed = wanted * (1 - scores) + (1 - wanted) * scores
    weights = (0.25 * wanted + 0.75 * (1 - wanted)) * missed**2
    return (weights * functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")).sum()


def overlaps(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Intersection over union of boxes (..., 4), and the generalized one (H. Rezatofighi et al., 2019, algorithm 1)."""

    def area(first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return (last - first).clamp(min=0).prod(-1)

    corners = one[..., :2], one[..., 2:], other[..., :2], other[..., 2:]
    both = area(torch.maximum(corners[0], corners[2]), torch.minimum(corners[1], corners[3]))
    around = area(torch.minimum(corners[0], corners[2]), torch.maximum(corners[1], corners[3]))
    either = area(*corners[:2]) + area(*corners[2:]) - both
    return both / either, both / either - (around - either) / around


def _convolution() -> tuple[nn.Module, ...]:
    return nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()


def _grid(size_hw: tuple[int, int], stride: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The centre (x, y) of every cell, row by row, and its stride."""
    rows, columns = (torch.arange(stride / 2, side, stride) for side in size_hw)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    centers = torch.stack([x.flatten(), y.flatten()], 1)
    return centers, torch.full((len(centers),), float(stride))
