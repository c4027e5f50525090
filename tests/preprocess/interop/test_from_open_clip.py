"""open_clip's configs against what its ``image_transform`` builds: torchvision's steps, and timm's for *longest*."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agreement import assert_equal
from lazily import Lazily

from onestream.preprocess import CannotImport
from onestream.preprocess.interop import from_open_clip, import_source

v1, timm_transforms = Lazily("torchvision.transforms"), Lazily("timm.data.transforms")
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def built(resize_mode: str, size: Any, fill: Any, interpolation: str) -> Any:
    """``image_transform(is_train=False)``; open_clip copied timm's two steps."""
    filter = v1.InterpolationMode(interpolation)
    if resize_mode == "longest":
        steps = [timm_transforms.ResizeKeepRatio(size, interpolation=interpolation, longest=1),
                 timm_transforms.CenterCropOrPad(size, fill=fill)]  # fmt: skip
    elif resize_mode == "squash":
        steps = [v1.Resize(size if isinstance(size, tuple) else (size, size), interpolation=filter)]
    else:
        steps = [v1.Resize(size, interpolation=filter), v1.CenterCrop((size, size))]
    return v1.Compose([*steps, v1.ToTensor(), v1.Normalize(MEAN, STD)])


@pytest.mark.parametrize(
    ("resize_mode", "size", "fill", "interpolation"),
    [
        ("shortest", 224, 0, "bicubic"),
        ("squash", 90, 0, "bilinear"),
        ("squash", (60, 90), 0, "bicubic"),
        ("longest", 128, 0, "bicubic"),
        ("longest", (60, 90), 114, "bilinear"),
    ],
)
def test_resize_modes(resize_mode: str, size: Any, fill: Any, interpolation: str) -> None:
    config = {"resize_mode": resize_mode, "size": size, "fill_color": fill, "interpolation": interpolation}
    assert_equal(from_open_clip({"preprocess_cfg": config}), built(resize_mode, size, fill, interpolation))


def test_the_file_of_a_model(tmp_path: Path) -> None:
    """As it lies on the hub, where the size is the network's."""
    config = {"model_cfg": {"vision_cfg": {"image_size": 70}}, "preprocess_cfg": {"mean": MEAN, "std": STD}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    imported = import_source(str(tmp_path))
    assert imported.definition == from_open_clip(config)
    assert "open_clip" in imported.origin
    assert_equal(imported.definition, built("shortest", 70, 0, "bicubic"))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"resize_mode": "crop"}, "'crop'; exact are 'shortest', 'longest' and 'squash'"),
        ({"size": (60, 90)}, r"\[60, 90\] is no square.*'squash'"),
        ({"interpolation": "lanczos"}, "'lanczos'.*bilinear, bicubic"),
        ({"mode": "L"}, "'L'.*'RGB' only"),
        ({"size": "big"}, "size is 'big'"),
        ({"resize_mode": "longest", "fill_color": 300}, "Pad value"),
    ],
)
def test_others_are_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(CannotImport, match=named):
        from_open_clip({"preprocess_cfg": config})
    with pytest.raises(CannotImport, match="preprocess_cfg is 3"):
        from_open_clip({"preprocess_cfg": 3})
