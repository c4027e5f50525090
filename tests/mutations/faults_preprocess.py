"""Faults of the definition, what executes it, the training loaders and video."""

from __future__ import annotations

from planted import Fault

_GEOMETRY = ("tests/preprocess/test_geometry.py",)
_LIMITS = ("tests/preprocess/test_limits.py",)

_DEFINITION = (
    Fault(
        name="crop-halves-rounded-up",
        file="preprocess/operations/windows.py",
        old='return (side - cropped) // 2 if self.rounding == "truncate" else round((side - cropped) / 2.0)',
        new='return (side - cropped) // 2 if self.rounding == "truncate" else (side - cropped + 1) // 2',
        tests=_GEOMETRY,
    ),
    Fault(
        name="pad-odd-column-on-the-left",
        file="preprocess/operations/windows.py",
        old="return Window(-((height - size_hw[0]) // 2), -((width - size_hw[1]) // 2), height, width)",
        new="return Window(-((height - size_hw[0]) // 2), -((width - size_hw[1] + 1) // 2), height, width)",
        tests=_GEOMETRY,
    ),
    Fault(
        name="shrunk-area-rounded-to-nearest",
        file="preprocess/geometry.py",
        old="max(multiple_of, math.floor(width / shrunk / multiple_of) * multiple_of)",
        new="max(multiple_of, round(width / shrunk / multiple_of) * multiple_of)",
        tests=("tests/preprocess/interop/test_huggingface_patches.py",),
    ),
    Fault(
        name="rows-of-a-damaged-picture-kept",
        file="preprocess/patches/batch.py",
        old="good = [index for index in range(len(self.grids)) if index not in bad]",
        new="good = [*range(len(self.grids))]",
        tests=("tests/preprocess/test_patches.py",),
    ),
    Fault(
        name="thumbnail-of-the-picture-always",
        file="preprocess/patches/tile_writer.py",
        old='whole = pixels if tiles.thumbnail_of == "picture" else grid',
        new="whole = pixels",
        tests=("tests/preprocess/test_tiles.py",),
    ),
    Fault(
        name="fewest-tiles-of-equal-ratios",
        file="preprocess/operations/tiles.py",
        old="return (large or [first])[-1]",
        new="return first",
        tests=("tests/preprocess/test_tiles.py",),
    ),
    Fault(
        name="digest-without-normalize",
        file="preprocess/definition.py",
        old="return hashlib.sha256(self.canonical_json().encode()).hexdigest()",
        new="return hashlib.sha256(self.pixels().canonical_json().encode()).hexdigest()",
        tests=("tests/preprocess/test_definition.py",),
    ),
    Fault(
        name="width-above-the-longest-side-allowed",
        file="preprocess/limits.py",
        old="if max(height, width) > MAX_SIDE:",
        new="if height > MAX_SIDE:",
        tests=_LIMITS,
    ),
    Fault(
        name="resized-size-not-limited",
        file="preprocess/plan.py",
        old="self._limits.check_resized(current)",
        new="self._limits.check_size(*size_hw)",
        tests=_LIMITS,
    ),
    Fault(
        name="orientation-5-not-transposed",
        file="preprocess/headers/base.py",
        old="return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)",
        new="return (self.width, self.height) if self.orientation > 5 else (self.height, self.width)",
        tests=("tests/preprocess/test_header.py",),
    ),
    Fault(
        name="bicubic-with-the-weights-of-opencv",
        file="preprocess/cpu/pillow_weights.py",
        old="x, a = abs(place), -0.5",
        new="x, a = abs(place), -0.75",
        tests=("tests/preprocess/test_exact_resize.py",),
    ),
    Fault(
        name="bgr-is-rgb-without-a-resize",
        file="preprocess/backends/finish.py",
        old="return np.array(placed[:, :, ::-1] if self._to_bgr else placed)",
        new="return np.array(placed)",
        tests=("tests/preprocess/test_parity.py",),
    ),
)

_TRAINING = (
    Fault(
        name="each-shard-shuffles-by-itself",
        file="preprocess/training/order.py",
        old="order = generator(seed=self.seed, epoch=epoch, index=0, purpose=SHUFFLE).permutation(self.count)",
        new=(
            "order = generator(seed=self.seed, epoch=epoch, index=self.shard_id, purpose=SHUFFLE)"
            ".permutation(self.count)"
        ),
        tests=("tests/preprocess/training/test_order.py",),
    ),
    Fault(
        name="shards-of-blocks-overlap",
        file="preprocess/training/order.py",
        old="first = self.shard_id * fewest + min(self.shard_id, more)",
        new="first = self.shard_id * fewest",
        tests=("tests/preprocess/training/test_order.py",),
    ),
    Fault(
        name="cache-knows-pictures-by-their-bytes-only",
        file="preprocess/training/sources/cache.py",
        old="key.update(self._about)",
        new='key.update(b"")',
        tests=("tests/preprocess/training/test_cache.py",),
    ),
    Fault(
        name="tar-index-outlives-a-change",
        file="preprocess/storage/tar_index.py",
        old="json.dumps([_VERSION, name, *version, contents_of])",
        new="json.dumps([_VERSION, name, contents_of])",
        tests=("tests/preprocess/training/test_tar_files.py",),
    ),
    Fault(
        name="flip-leaves-the-visibility-of-keypoints",
        file="preprocess/training/targets.py",
        old="moved[:, [one, other]] = moved[:, [other, one]]",
        new="moved[:, [one, other], :2] = moved[:, [other, one], :2]",
        tests=("tests/preprocess/training/test_keypoints.py",),
    ),
    Fault(
        name="yolo-bottom-edge-by-the-width",
        file="preprocess/training/detection/yolo.py",
        old="(x + w / 2) * width, (y + h / 2) * height)",
        new="(x + w / 2) * width, (y + h / 2) * width)",
        tests=("tests/preprocess/training/test_detection_files.py",),
    ),
    Fault(
        name="skipped-sample-keeps-its-label",
        file="preprocess/training/base_loader.py",
        old="slots[place] = Slot(slots[place].index, is_padding=True)",
        new="slots[place] = Slot(slots[place].index, is_padding=not good)",
        tests=("tests/preprocess/training/test_image_loader.py",),
    ),
)

_VIDEO = (
    Fault(
        name="frame-before-the-one-that-begins-now",
        file="preprocess/video/clips/choose_frames.py",
        old='return int(np.searchsorted(self.pts, time_s // self.time_base, side="right")) - 1',
        new='return max(0, int(np.searchsorted(self.pts, time_s // self.time_base, side="left")) - 1)',
        tests=("tests/preprocess/video/test_clips.py",),
    ),
    Fault(
        name="reflection-shows-the-last-frame-twice",
        file="preprocess/video/clips/choose_frames.py",
        old="period = [*there, *there[-2:0:-1]]",
        new="period = [*there, *there[::-1]]",
        tests=("tests/preprocess/video/test_clips.py",),
    ),
    Fault(
        name="frames-of-an-avi-counted-from-one",
        file="preprocess/video/clips/decode.py",
        old="for count, frame in enumerate(decoded):",
        new="for count, frame in enumerate(decoded, start=1):",
        tests=("tests/preprocess/video/test_decode.py",),
    ),
    Fault(
        name="u-to-green-by-the-share-of-red",
        file="preprocess/video/common/color.py",
        old="-chroma * 2 * (1 - blue) * blue / green,",
        new="-chroma * 2 * (1 - blue) * red / green,",
        tests=("tests/preprocess/video/test_color.py",),
    ),
)

PREPROCESS: tuple[Fault, ...] = (*_DEFINITION, *_TRAINING, *_VIDEO)
