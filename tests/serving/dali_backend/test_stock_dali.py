"""The generated ``dali.py``, run as it is: sizes equal to the integer, levels within the tolerances, limits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from definition_strategies import definitions
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from image_files import encode, jpeg_declaring
from nvidia.dali import Pipeline as DaliPipeline
from nvidia.dali import fn, types
from oriented_files import ORIENTED
from PIL import Image
from sample_images import CONVERTED, PHOTOS, PLAIN, photo, portrait

from onestream.preprocess import (
    CannotCompile,
    CenterCrop,
    Decode,
    Definition,
    Letterbox,
    Limits,
    Normalize,
    Pad,
    Region,
    Resize,
    compile,
)
from onestream.preprocess.plan import Planner
from onestream.preprocess.tolerances import Source, compare
from onestream.serving.building.dali_backend.serialize import pipeline_file
from onestream.serving.pipeline import GpuOptions, Pipeline, ServingOptions

READ_OTHERWISE = {
    "jpeg, second EXIF",
    "webp, lossless",
    "webp, odd ICC",
    "webp, after XMP",
    "webp, with JPEG's prefix",
}
"""Files that DALI alone turns otherwise or refuses: two EXIF blocks, one after an odd chunk, one with a prefix."""
Pixels = npt.NDArray[np.uint8]
CLASSIFY = Definition(
    operations=[
        Decode(),
        Resize(mode="shorter", size=256),
        CenterCrop(size=(224, 224)),
        Normalize(mean=(127, 127, 127), std=(128, 128, 128), scale=1),
    ]
)
SIZES = st.tuples(st.integers(1, 65535), st.integers(1, 65535)) | st.tuples(st.integers(1, 600), st.integers(1, 600))
INSIDE = [*map(photo, PHOTOS), portrait("coffee"), photo("coffee").resize((9, 7))]
"""Images of which a centre crop touches no border."""
IMAGES = [*INSIDE, photo("rocket").resize((700, 3))]


def load(definition: Definition, limits: Limits | None = None, **gpu: Any) -> ModuleType:
    """The generated file, executed as a module."""
    options = ServingOptions(gpu=GpuOptions(**gpu))
    pipeline = Pipeline(name="made", preprocess=definition, limits=limits or Limits(), serving=options)
    module = ModuleType("dali")
    exec(pipeline_file(pipeline, source="pipelines/made.yaml"), module.__dict__)
    return module


class Stock:
    """The generated pipeline on this machine."""

    def __init__(self, definition: Definition, limits: Limits | None = None) -> None:
        self._pipeline = load(definition, limits).preprocess()
        self._pipeline.build()

    def run(self, *files: bytes) -> list[Pixels]:
        (output,) = self._pipeline.run(image=[np.frombuffer(file, np.uint8) for file in files])
        return [np.array(output.at(index)) for index in range(len(files))]


def differences(definition: Definition, images: Sequence[Image.Image]) -> Iterator[tuple[Image.Image, Pixels]]:
    """How many levels lie between the reference and the generated pipeline, for each picture as a JPEG."""
    stock, reference = Stock(definition), compile(definition)
    for image in images:
        file = encode(image, "JPEG", quality=90)
        ((expected,), (seen,)) = reference.run([file]), stock.run(file)
        yield image, np.abs(expected.astype(int) - seen)


# The form refuses many of the definitions.
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(definition=definitions(filters=st.just("bilinear")), sizes=st.lists(SIZES, min_size=20, max_size=20))
def test_sizes_and_windows_are_those_of_every_backend(definition: Definition, sizes: list[tuple[int, int]]) -> None:
    try:
        module = load(definition)
    except CannotCompile:
        reject()
    graph = DaliPipeline(batch_size=len(sizes), num_threads=1, device_id=None, prefetch_queue_depth=1)
    with graph:
        source = fn.external_source(name="source", dtype=types.INT64, ndim=1)
        window = module.window(source)
        graph.set_outputs(*window, *module.region(source, *window[:3]))
    graph.build()
    outputs = graph.run(source=[np.array(size, np.int64) for size in sizes])
    for index, size_hw in enumerate(sizes):
        size, first, stop, top_left, anchor, shape, start, until = (np.array(out.at(index)) for out in outputs)
        plan = Planner(definition)(size_hw)
        kept = plan.window
        assert tuple(size) == plan.resized_hw
        assert (*first, *(stop - first)) == (kept.top, kept.left, kept.height, kept.width)
        assert tuple(first - top_left) == plan.offset
        # What is decoded holds at least what the other backends decode, inside the image.
        part = plan.part
        assert (anchor >= 0).all()
        assert (anchor + shape <= size_hw).all()
        assert (anchor <= (part.top, part.left)).all()
        assert (anchor + shape >= (part.top + part.height, part.left + part.width)).all()
        # The corners are float32, relative to the anchor: their error grows with the window's side.
        np.testing.assert_allclose(anchor + start, [first for first, _ in plan.source], rtol=1e-6, atol=1e-4)
        np.testing.assert_allclose(anchor + until, [last for _, last in plan.source], rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("source", [pytest.param("plain", marks=pytest.mark.slow), "converted"])
def test_every_format_is_within_the_tolerance(source: Source) -> None:
    """The stages decode, resize and crop in one: the file ends with the crop's pixels."""
    stock, definition = Stock(CLASSIFY), CLASSIFY.pixels()
    reference = compile(definition)
    # As large as is resized down by the crop's filter, by turns upright and lying.
    images = [photo("chelsea"), portrait("coffee").resize((280, 400))]
    for number, (form, write) in enumerate((PLAIN if source == "plain" else CONVERTED).items()):
        file = write(images[number % 2])
        comparison = compare(
            *reference.run([file]), *stock.run(file), definition=definition, stage="crop", backend="dali", source=source
        )
        assert comparison.within, (form, comparison)


@pytest.mark.parametrize(
    ("operations", "tolerated"),
    [
        ([CenterCrop(size=(131, 160))], 0),  # the decode stage: nothing is resampled
        ([CenterCrop(size=(700, 160))], 0),
        ([Resize(mode="shorter", size=701), CenterCrop(size=(300, 300))], 1),
        ([Resize(mode="longer", size=200, rounding="nearest"), CenterCrop(size=(60, 100))], 1),
    ],
)
def test_photos_of_all_shapes_at_every_stage(operations: list[Any], tolerated: int) -> None:
    definition = Definition(operations=[Decode(), *operations]).pixels()
    for _, difference in differences(definition, INSIDE):
        assert difference.max() <= tolerated


def test_gray_is_the_luma_of_the_rgb() -> None:
    definition = Definition(
        operations=[Decode(color="gray"), Resize(mode="shorter", size=128), CenterCrop(size=(112, 96))]
    ).pixels()
    for _, difference in differences(definition, IMAGES):
        assert difference.shape == (112, 96, 1)
        # One level of the luma, one of the resize.
        assert difference.max() <= 2


def test_bgr_is_rgb_with_its_channels_reversed() -> None:
    for geometry in (Letterbox(size=(96, 128)), CenterCrop(size=(112, 96))):
        bgr, rgb = (Stock(Definition(operations=[Decode(color=color), geometry]).pixels()) for color in ("bgr", "rgb"))
        for image in INSIDE:
            file = encode(image, "JPEG", quality=90)
            np.testing.assert_array_equal(*bgr.run(file), rgb.run(file)[0][:, :, ::-1])


@pytest.mark.parametrize(
    "operations",
    [
        [Letterbox(size=(160, 128))],
        [Letterbox(size=(96, 160), align="top_left", value=3)],
        [Resize(mode="longer", size=99), Pad(size=(100, 120), value=7)],
        [Resize(mode="exact", size=(37, 400))],
    ],
)
def test_at_the_image_border_only_the_outermost_pixels_differ_by_more(operations: list[Any]) -> None:
    """DALI's filter repeats the border pixel where Pillow renormalizes."""
    definition = Definition(operations=[Decode(), *operations]).pixels()
    for image, by_channel in differences(definition, INSIDE):
        difference = by_channel.max(axis=2)
        placement = Planner(definition)((image.height, image.width))
        (top, left), window = placement.offset, placement.window
        image_part = np.zeros(difference.shape, bool)
        image_part[top : top + window.height, left : left + window.width] = True
        inner = difference[top + 1 : top + window.height - 1, left + 1 : left + window.width - 1]
        assert difference.max() <= 20
        assert inner.max() <= 1
        assert not difference[~image_part].any()


@pytest.mark.parametrize("form", sorted(set(ORIENTED) - READ_OTHERWISE))
def test_images_are_turned_as_their_exif_says(form: str) -> None:
    definition = Definition(operations=[Decode(), CenterCrop(size=(30, 20))]).pixels()
    stock = Stock(definition)
    for orientation in range(1, 9):
        file = ORIENTED[form](orientation, "<")
        np.testing.assert_array_equal(*stock.run(file), *compile(definition).run([file]))


def test_a_batch_gives_what_its_images_give_alone() -> None:
    stock, files = Stock(CLASSIFY), [encode(image, "JPEG") for image in IMAGES]
    for together, file in zip(stock.run(*files), files, strict=True):
        np.testing.assert_array_equal(together, *stock.run(file))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the operators that an older DALI has
@pytest.mark.parametrize("where", ["an older DALI", "a GPU"])
def test_where_it_decodes_whole_images_it_gives_the_same_levels(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    module = load(CLASSIFY)
    decode, asked = module.fn.decoders.image, []

    def on_the_cpu(encoded: Any, *, device: str, **options: Any) -> Any:
        asked.append(device)
        return decode(encoded, device="cpu", **options)

    if where == "a GPU":
        monkeypatch.setattr(module, "ON_GPU", True)
        monkeypatch.setattr(module.fn.decoders, "image", on_the_cpu)
    else:
        monkeypatch.setattr(module, "DECODES_PARTS", False)
    pipeline, definition = module.preprocess(), CLASSIFY.pixels()
    pipeline.build()
    assert asked == (["mixed"] if where == "a GPU" else [])
    for form in ("jpeg 4:2:0", "jpeg EXIF 6", "png EXIF 8", *(["tiff orientation 7"] if where != "a GPU" else [])):
        file = PLAIN[form](photo("chelsea"))
        (output,) = pipeline.run(image=[np.frombuffer(file, np.uint8)])
        (reference,) = compile(definition).run([file])
        assert compare(reference, np.array(output.at(0)), definition=definition, stage="crop", backend="dali").within


@pytest.mark.parametrize(
    "limits", [{"max_pixels": 300 * 451 - 1}, {"max_body_bytes": 5000}, {"max_pixels": 256 * 384}], ids=str
)
def test_limits_are_checked_before_decoding(limits: dict[str, int]) -> None:
    file = encode(photo("chelsea"), "JPEG")  # 451 x 300
    assert len(file) > 5000
    stock = Stock(CLASSIFY, Limits(**limits))
    if limits.get("max_pixels") == 256 * 384:
        file = encode(photo("chelsea").resize((300, 200)), "JPEG")  # resized to 384 x 256: just allowed
        assert stock.run(file)[0].shape == (224, 224, 3)
        file = encode(photo("chelsea").resize((301, 200)), "JPEG")  # to 385 x 256
    for refused in (file, jpeg_declaring(30000, 30000)):
        with pytest.raises(RuntimeError, match=r"fn\.slice"):
            stock.run(refused)


def test_the_file_needs_nothing_of_ours_and_serializes_as_the_backend_does_it(tmp_path: Path) -> None:
    options = ServingOptions(gpu=GpuOptions(max_batch_size=3))
    pipeline = Pipeline(name="made", preprocess=CLASSIFY, serving=options)
    (tmp_path / "dali.py").write_text(pipeline_file(pipeline, source="pipelines/made.yaml"))
    # The words of the DALI backend (model_provider.h), and what may not be imported.
    script = """
import importlib.util, sys
from nvidia.dali._utils.autoserialize import invoke_autoserialize
spec = importlib.util.spec_from_file_location("autoserialize_mod", "dali.py")
module = importlib.util.module_from_spec(spec)
sys.modules["autoserialize_mod"] = module
spec.loader.exec_module(module)
invoke_autoserialize(module, "model.dali")
print(sorted({"preprocess", "serving", "client", "pydantic", "PIL"} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "[]"), ran.stderr
    served = DaliPipeline.deserialize(filename=str(tmp_path / "model.dali"))
    assert served.max_batch_size == 3
    files = [np.frombuffer(encode(image, "JPEG"), np.uint8) for image in IMAGES[:3]]
    served.feed_input("image", files)
    (output,) = served.run()
    for index, file in enumerate(files):
        np.testing.assert_array_equal(np.array(output.at(index)), *Stock(CLASSIFY).run(file.tobytes()))


@pytest.mark.parametrize(
    ("named", "operations"),
    [
        ("'lanczos'", [Resize(mode="exact", size=(9, 9), filter="lanczos")]),
        ("one resize", [Resize(mode="exact", size=(9, 9)), Resize(mode="exact", size=(5, 5))]),
        ("depends on the image", [Resize(mode="shorter", size=9)]),
        (r"pad to \[30, 40\] may meet a larger image", [Pad(size=(30, 40))]),
        (r"pad to \[90, 90\] may meet", [Resize(mode="shorter", size=9), Pad(size=(90, 90))]),
        (r"pad to \[90, 90\] may meet", [Resize(mode="longer", size=91), Pad(size=(90, 90))]),
        ("without antialias", [Resize(mode="exact", size=(9, 9), antialias=False)]),
        ("no resize with rounding 'ratio'", [Resize(mode="fit", size=(9, 9), rounding="ratio"), Pad(size=(9, 9))]),
        ("no center_crop with rounding 'truncate'", [CenterCrop(size=(9, 9), rounding="truncate")]),
        ("no resize with rounding 'up'", [Resize(mode="fit", size=(9, 9), rounding="up"), Pad(size=(9, 9))]),
        ("no resize with mode 'height'", [Resize(mode="height", size=(9, 9)), CenterCrop(size=(9, 9))]),
        ("multiple_of", [Resize(mode="fit", size=(8, 8), multiple_of=4), CenterCrop(size=(9, 9))]),
        ("enlarge false", [Resize(mode="fit", size=(8, 8), enlarge=False), CenterCrop(size=(9, 9))]),
        ("shrink false", [Resize(mode="fit", size=(8, 8), shrink=False), CenterCrop(size=(9, 9))]),
        ("max_size", [Resize(mode="shorter", size=8, max_size=9), CenterCrop(size=(9, 9))]),
        ("one level for every channel", [Letterbox(size=(9, 9), value=(1, 2, 3))]),
        ("no pad with multiple_of", [CenterCrop(size=(8, 8)), Pad(size=(9, 9), multiple_of=(8, 8))]),
        ("may miss the image", [Resize(mode="fit", size=(9, 9)), Pad(size=(9, 9)), CenterCrop(size=(1, 1))]),
    ],
)
def test_refuses_by_name_what_it_cannot_do_exactly(named: str, operations: list[Any]) -> None:
    with pytest.raises(CannotCompile, match=named):
        load(Definition(operations=[Decode(), *operations]))


def test_refuses_regions() -> None:
    with pytest.raises(CannotCompile, match="the unmodified container takes whole pictures"):
        load(Definition(operations=[Region(of="find"), CenterCrop(size=(9, 9))]))


@pytest.mark.parametrize(
    ("decode", "on_gpu", "hardware_load"), [("gpu", True, 0.5), ("hybrid", True, 0.0), ("cpu", False, 0.5)]
)
def test_placement_is_what_the_pipeline_says(decode: str, on_gpu: bool, hardware_load: float) -> None:
    constants = vars(load(CLASSIFY, decode=decode, hw_decoder_load=0.5, decode_threads=3, max_batch_size=7))
    assert constants["GPU"] is on_gpu
    assert constants["HW_DECODER_LOAD"] == hardware_load
    assert (constants["THREADS"], constants["MAX_BATCH_SIZE"]) == (3, 7)
