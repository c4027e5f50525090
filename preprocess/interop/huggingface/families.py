"""What is known of transformers' image processors beside their configs: a table of rules by the class's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onestream.preprocess.interop.huggingface.patches import (
    GLM_4V,
    PADDLEOCR_VL,
    PIXTRAL,
    QWEN2_VL,
    QWEN3_VL_VIDEO,
    SIGLIP2,
    PatchRules,
)
from onestream.preprocess.interop.huggingface.tiles import Tiling


@dataclass(frozen=True)
class Family:
    """The rules of a kind of image processor that its config does not state.

    ``resize``: how it reads the size. ``square``: whether a size of one number is both sides. ``crops``: whether it has
    a centre crop, so that its config must say if it is done. ``own``: fields that only this kind reads, or that change
    nothing. ``normalizes``: whether it subtracts a mean at all. ``antialias``: whether its resize smooths.
    ``on_tensors``: whether it resizes tensors only. ``fractions``: whether it resizes fractions of a level, so that a
    definition, which rounds to 8 bit, is within a level of it. ``patches``: of one that makes patches, how. ``tiling``:
    how it cuts tiles, if it does.
    """

    resize: Literal["plain", "convnext", "levit", "poolformer", "detector", "stretched", "longer"] = "plain"
    square: bool = True
    crops: bool = False
    own: tuple[str, ...] = ()
    normalizes: bool = True
    antialias: bool = True
    on_tensors: bool = False
    fractions: bool = False
    patches: PatchRules | None = None
    tiling: Tiling | None = None


# Annotations change no pixel, and without pad_size do_pad adds nothing to a picture alone.
_OF_BOXES = ("do_pad", "pad_size", "format", "do_convert_annotations", "max_size")
_OF_PATCHES = ("min_pixels", "max_pixels", "patch_size", "temporal_patch_size", "merge_size")
# Which frames are taken of a video is not part of a definition.
_OF_FRAMES = (
    *_OF_PATCHES, "do_sample_frames", "fps", "num_frames", "min_frames", "max_frames", "max_duration", "max_image_size",
    "max_video_tokens", "return_metadata", "video_metadata", "use_token_compression",
)  # fmt: skip
_PLAIN, _CLIP, _DETR = Family(), Family(square=False, crops=True), Family("detector", own=_OF_BOXES)
_OF_TILES = ("min_patches", "max_patches", "use_covering_area_grid")
_LLAVA = Family(square=False, crops=True, own=("image_grid_pinpoints", "do_pad"), tiling="pinpoints")
_IDEFICS = Family(own=("do_image_splitting", "max_image_size", "return_row_col_info", "do_pad"), tiling="longest")
FAMILIES: dict[str, Family] = {
    "Beit": Family(crops=True),
    "Bit": _CLIP,
    "Blip": _PLAIN,
    "Chameleon": _CLIP,
    "ChineseCLIP": _CLIP,
    "CLIP": _CLIP,
    "ConditionalDetr": _DETR,
    "ConvNext": Family("convnext", square=False, own=("crop_pct",)),
    "DeformableDetr": _DETR,
    "DeiT": Family(crops=True),
    "DepthPro": Family("detector", antialias=False, on_tensors=True, fractions=True),
    "Detr": _DETR,
    "DINOv3ViT": Family(on_tensors=True, fractions=True),
    "EfficientNet": Family(crops=True, own=("rescale_offset", "include_top")),
    "Gemma3": Family(
        own=("pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate")
    ),
    "Glm46V": Family(own=_OF_FRAMES, patches=GLM_4V),
    "Glm4v": Family(own=_OF_FRAMES, patches=GLM_4V),
    "GotOcr2": Family(own=(*_OF_TILES, "crop_to_patches"), tiling="ratio"),
    "Idefics3": _IDEFICS,
    "Levit": Family("levit", square=False, crops=True),
    "Llava": _CLIP,
    "LlavaNext": _LLAVA,
    "LlavaOnevision": _LLAVA,
    "MobileNetV1": _CLIP,
    "MobileNetV2": _CLIP,
    "MobileViT": Family(square=False, crops=True, own=("do_flip_channel_order",), normalizes=False),
    "Ovis2": Family(own=_OF_TILES),
    "OwlViT": Family(crops=True),
    "Pixtral": Family(own=("patch_size", "do_pad"), patches=PIXTRAL),
    "PoolFormer": Family("poolformer", square=False, crops=True, own=("crop_pct",)),
    "Pvt": _PLAIN,
    "Qwen2VL": Family(own=(*_OF_FRAMES, "cap_pixels_per_frame"), patches=QWEN2_VL),
    "Qwen3VL": Family(own=(*_OF_FRAMES, "cap_pixels_per_frame"), patches=QWEN3_VL_VIDEO),
    "PaddleOCRVL": Family(own=_OF_PATCHES, patches=PADDLEOCR_VL),
    "RfDetr": Family("detector", own=_OF_BOXES, antialias=False, fractions=True),
    "RTDetr": _DETR,
    "Sam": Family("longer", own=("do_pad", "pad_size", "mask_size", "mask_pad_size")),
    "Sam2": Family(own=("mask_size",), on_tensors=True),
    "Segformer": _PLAIN,
    "SegGpt": _PLAIN,
    "Siglip": Family(square=False),
    "Siglip2": Family(own=("patch_size", "max_num_patches"), patches=SIGLIP2),
    "SmolVLM": _IDEFICS,
    "ViT": _PLAIN,
    "Yolos": Family("stretched", own=_OF_BOXES),
}
"""By the beginning of the class's name. DINOv2 uses the image processor of BiT, ResNet that of ConvNeXT, Swin ViT's,
D-FINE RT-DETR's, Qwen2.5-VL and Qwen3-VL that of Qwen2-VL, and video processors have the rules of their name. YOLOS
makes multiples of 16 of two bounds, which no resize does. A class that is not here is tried by each of these rules,
where transformers has it."""
