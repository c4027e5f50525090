"""Boxes in frames that a GPU decoded: brought to the host, and drawn into as on the CPU, in every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_frames import a_frame, a_surface, blank

from onestream.postprocess.planes import displayed
from onestream.postprocess.planes_gpu import PlanesTaker
from onestream.preprocess.cuda.device import Device
from onestream.preprocess.video.common.color import ColorRule
from onestream.preprocess.video.common.orientation import Orientation
from onestream.preprocess.video.gpu.surfaces import LAYOUTS
from onestream.serving.video.compositing import DrawnBoxes
from onestream.wire.tensor_names import BOXES, CLASS_IDS, LABELS, SCORES

RESULTS = {
    BOXES: np.array([[20.5, 31.2, 90, 120.9], [1, 2, 60, 70]], np.float32),
    SCORES: np.array([0.9, 0.5], np.float32),
    CLASS_IDS: np.array([17, 3], np.int32),
    LABELS: np.array([b"cat", b"car"], object),
}


@pytest.mark.parametrize("orientation", [Orientation(), Orientation(True, False, True)], ids=["upright", "turned"])
@pytest.mark.parametrize("key", sorted(LAYOUTS), ids=[LAYOUTS[key].format for key in sorted(LAYOUTS)])
def test_every_bit_is_that_of_the_cpu(key: Any, orientation: Orientation, device: Device) -> None:
    device.enter()
    work = DrawnBoxes(ColorRule(), from_gpu=PlanesTaker(device.stream()))
    # Two frames of a size share memory; then the size changes.
    for seed, size_hw in enumerate([(271, 481), (271, 481), (144, 256)]):
        frame = a_frame(size_hw, key, seed=seed)
        shown = displayed(frame, orientation)
        one, other = blank(shown), blank(shown)
        work.write(shown, RESULTS, one)
        work.write_surface(a_surface(frame, device.stream()), orientation, RESULTS, other)
        for name in "yuv":
            np.testing.assert_array_equal(getattr(other, name), getattr(one, name), err_msg=name)
