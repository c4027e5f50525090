"""Lines of text: samples are those of serving in every bit, targets are what CTC's loss takes; lines that vary."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from image_sets import only_batch
from loader_kinds import LINES, WIDE_LINES, assert_same
from PIL import Image, ImageDraw
from text_sets import CHARACTERS, Page, pages, tilted, write_json_lines

from onestream.preprocess import (
    WHOLE_PICTURE,
    BadSample,
    CannotCompile,
    Decode,
    Definition,
    Limits,
    Output,
    Region,
    Resize,
    compile,
    compile_from_picture,
)
from onestream.preprocess.changes import Background
from onestream.preprocess.training import Augmentation, TextFiles, TextLoader, read_text_lines

READ = WIDE_LINES
BOX = Definition(
    operations=(
        Region(of="find", shape="box", margin=0.3),
        Resize(mode="exact", size=(32, 100), filter="bicubic"),
        READ.normalize,
    )
)
GRAY = Definition(
    operations=(
        Region(of="find", shape="quad", color="gray", min_side=5),
        Resize(mode="height", size=(20, 75)),
        Output(layout="NHWC", dtype="uint8"),
    )
)
DEFINITIONS = [pytest.param(READ, id="read"), pytest.param(BOX, id="box"), pytest.param(GRAY, id="gray")]
PAGES = pages(9)
OPTIONS: dict[str, Any] = {"characters": CHARACTERS, "columns": lambda width: width // 8}


def changed(definition: Definition, place: int, **fields: Any) -> Definition:
    """With other values of the operation at a place."""
    content = definition.model_dump()
    content["operations"][place].update(fields)
    return Definition.model_validate(content)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TextFiles:
    """25 lines in 9 pictures of three formats, stored in four orientations."""
    return read_text_lines(write_json_lines(tmp_path_factory.mktemp("lines"), PAGES))


@pytest.mark.parametrize("backend", ["dali", "reference"])
@pytest.mark.parametrize("definition", DEFINITIONS)
def test_samples_are_bit_equal_to_what_serving_runs(files: TextFiles, definition: Definition, backend: Any) -> None:
    """Serving decodes a picture once, whole, and makes the samples of all of its regions."""
    decode, cut = compile(WHOLE_PICTURE, backend=backend), compile_from_picture(definition, backend=backend)
    served: list[np.ndarray] = []
    for path in dict.fromkeys(line.path for line in files.samples):
        (picture,) = decode.run([path.read_bytes()])
        quads = np.stack([line.quad for line in files.samples if line.path == path])
        served += cut.run(picture, quads)
    with TextLoader(definition, files, batch_size=4, backend=backend, threads=2, shuffle=True, **OPTIONS) as loader:
        made = LINES.collect(loader)
    assert sorted(made) == list(range(len(files)))
    for index, (sample, *_) in made.items():
        np.testing.assert_array_equal(sample, served[index])
    assert len({sample.shape for sample, *_ in made.values()}) > 1 or definition is BOX


@pytest.mark.parametrize(("definition", "level"), [(READ, 128), (GRAY, 0)])
def test_lines_are_padded_on_the_right_to_the_widest_of_their_batch(
    files: TextFiles, definition: Definition, level: int
) -> None:
    value: np.ndarray = np.full(definition.output_spec.channels, level, np.uint8)
    if definition is READ:
        value = (value / np.float32(255) - np.float32([0.5, 0.4, 0.3])) / np.float32([0.5, 0.6, 0.7])
    beside = 0
    with TextLoader(definition, files, batch_size=5, **OPTIONS) as loader:
        for batch in loader:
            images = batch.images.numpy()
            # (lines, height, width, channels)
            images = images.transpose(0, 2, 3, 1) if definition is READ else images
            assert images.shape[2] == batch.widths.max()
            for image, width in zip(images, batch.widths.tolist(), strict=True):
                assert (image[:, width:] == value).all()
                beside += image[:, width:].size
    assert beside > 0


def test_targets_are_what_the_ctc_loss_takes_and_padding_has_no_loss(files: TextFiles) -> None:
    with TextLoader(READ, files, batch_size=4, last_batch="pad", **OPTIONS) as loader:
        batches = list(loader)
        classes = len(loader.characters)
    assert batches[-1].indices.tolist() == [24, -1, -1, -1]
    for batch in batches:
        good = 1 if batch is batches[-1] else 4
        padding = [0] * (4 - good)
        texts = [files.samples[index].text for index in batch.indices.tolist()[:good]]
        assert batch.texts == [*texts, *("" for _ in padding)]
        assert batch.target_lengths.tolist() == [len(text) for text in batch.texts]
        assert "".join(CHARACTERS[number - 1] for number in batch.targets.tolist()) == "".join(texts)
        assert batch.input_lengths.tolist() == [width // 8 for width in batch.widths.tolist()]
        assert batch.widths[:good].min() > 0
        assert batch.widths[good:].tolist() == padding
        log_probs = torch.randn(batch.images.shape[3] // 8, 4, classes).log_softmax(2)
        losses = torch.nn.CTCLoss(reduction="none")(log_probs, *batch[1:4])
        assert torch.isfinite(losses).all()
        assert losses[good:].tolist() == padding


def test_a_picture_is_read_once_for_its_lines_in_a_window_which_may_not_change_within_an_epoch(
    files: TextFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[Path] = Counter()
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        read[path] += 1
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    paths = {line.path for line in files.samples}
    with TextLoader(READ, files, batch_size=2, shuffle=True, window=len(files), **OPTIONS) as loader:
        list(loader)
        assert {path: read[path] for path in paths} == dict.fromkeys(paths, 1)
        next(iter(loader))
        state = loader.state_dict()
    with TextLoader(READ, files, batch_size=2, shuffle=True, window=4, **OPTIONS) as loader:
        with pytest.raises(ValueError, match="the state is of a loader with window 13; this one has 2"):
            loader.load_state_dict(state)
        loader.load_state_dict(state | {"batches": 0})


def test_lines_that_show_to_be_bad_fail_at_once_or_are_skipped(tmp_path: Path) -> None:
    line = tilted(100, 60, 80, 20, 10)
    texts = ["", "a", "Ab", "ab", "aaaaaaaaaaaaa", "b"]
    page = Page("a.png", (120, 200), tuple((line, text) for text in texts))
    small = Page("b.png", (120, 200), ((tilted(100, 60, 80, 4, 10), "small"), (tilted(100, 60, 80, 14, 0), "c")))
    files = read_text_lines(write_json_lines(tmp_path, [page, small]))
    definition = changed(READ, 0, min_side=6)
    # 80 by 20 pixels become 192 by 48, which are 24 columns.
    with pytest.raises(BadSample, match=r"4 of 8 lines of text cannot be used:") as raised:
        TextLoader(definition, files, batch_size=2, **OPTIONS)
    reasons = [line.partition("jsonl ")[2] for line in str(raised.value).split("\n")[1:]]
    assert reasons == [
        "line 1, text 1: the text is empty; leave out a line whose text is not known",
        "line 1, text 3: character 1 of the text 'Ab' is 'A' (U+0041), which is none of the 39 characters",
        "line 1, text 5: the text 'aaaaaaaaaaaaa' is too long: CTC needs 13 columns for its characters and 12 for "
        "blanks between equal ones; the network gives 24 for this line",
        "line 2, text 1: the line's shorter side has 4.1 pixels; the definition's region takes those of 6 or more "
        "(min_side)",
    ]
    with TextLoader(definition, files, batch_size=2, bad_files="skip", **OPTIONS) as loader:
        for _ in range(2):
            batches = list(loader)
        assert [text for batch in batches for text in batch.texts] == ["a", "ab", "b", "c"]
        assert [f"line {one.name.partition('jsonl line ')[2]}: {one.reason}" for one in loader.skipped] == reasons


def test_a_line_that_the_definition_cannot_hold_is_bad(tmp_path: Path) -> None:
    """Serving refuses it, too: the pad states no multiple."""
    definition = changed(READ, 2, multiple_of=(0, 0))
    lines = ((tilted(100, 60, 120, 20, 0), "ab"), (tilted(100, 60, 50, 20, 0), "cd"))
    files = read_text_lines(write_json_lines(tmp_path, [Page("a.png", (120, 200), lines)]))
    with pytest.raises(BadSample, match=r"text 1: .*pads to 160x48 pixels, which cannot hold the 288x48"):
        TextLoader(definition, files, batch_size=2, **OPTIONS)
    with pytest.raises(BadSample, match=r"text 1: .*too_many_pixels.*would have 288x48 = 13824 pixels; at most 1000"):
        TextLoader(READ, files, batch_size=2, limits=Limits(max_pixels=10_000), **OPTIONS)
    batch = only_batch(TextLoader(definition, files, batch_size=2, bad_files="skip", **OPTIONS))
    assert batch.texts == ["cd"]
    assert batch.images.shape == (1, 3, 48, 160)


def test_pictures_that_turn_out_to_be_bad_fail_or_are_skipped(tmp_path: Path) -> None:
    pictures = pages(6, seed=2)
    files = read_text_lines(write_json_lines(tmp_path, pictures))
    (tmp_path / pictures[0].name).unlink()
    Page(pictures[1].name, (64, 128), ()).save(tmp_path)
    damaged = tmp_path / pictures[3].name
    damaged.write_bytes(damaged.read_bytes()[:2000])
    message = r"img_000\.jpg: lines\.jsonl line 1, text 1: the file cannot be read: No such"
    with TextLoader(READ, files, batch_size=4, **OPTIONS) as loader, pytest.raises(BadSample, match=message):
        list(loader)
    with TextLoader(READ, files, batch_size=4, bad_files="skip", **OPTIONS) as loader:
        texts = [text for batch in loader for text in batch.texts]
        reasons = {Path(one.name.partition(":")[0]).name: one.reason for one in loader.skipped}
    assert texts == [text for number in (2, 4, 5) for _, text in pictures[number].lines]
    height, width = pictures[1].size_hw
    assert reasons[pictures[1].name] == (
        f"the picture has 128x64 pixels after its EXIF orientation; when its lines were read it had {width}x{height}"
    )
    assert "corrupt" in reasons[pictures[3].name]


def test_wrong_options_are_named(files: TextFiles) -> None:
    longer = Definition(operations=(READ.operations[0], Resize(mode="longer", size=64)))
    cases: list[tuple[Definition, dict[str, Any], type[Exception], str]] = [
        (Definition(operations=(Decode(),)), {}, CannotCompile, "begins with region, got decode"),
        (longer, {}, CannotCompile, "one height"),
        (READ, {"backend": "cvcuda"}, CannotCompile, "cvcuda"),
        (READ, {"window": 0}, ValueError, "window must be at least 1, got 0"),
    ]
    for definition, change, error, message in cases:
        with pytest.raises(error, match=message):
            TextLoader(definition, files, batch_size=2, **OPTIONS, **change)


def test_a_chain_that_changes_nothing_gives_what_serving_runs(files: TextFiles) -> None:
    never = Augmentation([{"op": "warp", "probability": 0}, {"op": "blur", "probability": 0}])
    with LINES.open(files, batch_size=4, augmentation=never) as loader:
        varied = LINES.collect(loader)
    with LINES.open(files, batch_size=4, varied=False) as loader:
        assert_same(LINES.collect(loader), varied)


@pytest.mark.parametrize(
    ("border", "fill", "corner"),
    [
        # Blue first: the definition's order.
        ((80, 100), 0, [255, 0, 0]),
        ((0, 0), 99, [99, 99, 99]),
        ((0, 0), 0, [0, 0, 0]),
        ((0, 0), None, [255, 0, 0]),
    ],
    ids=["picture", "fill", "black", "border repeated"],
)
def test_what_is_moved_in_is_the_picture_around_the_line_and_then_the_fill(
    tmp_path: Path, border: tuple[int, int], fill: int | None, corner: list[int]
) -> None:
    """A line in red with blue around it: turned, its corners show blue, and where the picture ends there the fill."""
    rows, columns = border
    picture = np.zeros((40 + 2 * rows, 100 + 2 * columns, 3), np.uint8)
    picture[:, :, 2] = 255
    picture[rows + 4 : rows + 36, columns + 4 : columns + 96] = (255, 0, 0)
    Image.fromarray(picture).save(tmp_path / "a.png")
    line = {"box": [columns, rows, columns + 100, rows + 40], "text": "a"}
    (tmp_path / "lines.jsonl").write_text(json.dumps({"path": "a.png", "lines": [line]}))
    chain = Augmentation([{"op": "rotation", "degrees": [20, 20]}], fill=fill)
    definition = WIDE_LINES.model_copy(update={"operations": WIDE_LINES.operations[:2]}).pixels()
    lines = read_text_lines(tmp_path / "lines.jsonl")
    with LINES.open(lines, definition=definition, batch_size=1, augmentation=chain) as loader:
        ((sample, *_),) = LINES.collect(loader).values()
    assert sample[0, 0].tolist() == corner
    assert sample[24, 60].tolist() == [0, 0, 255]


@given(st.integers(0, 255), st.integers(0, 255), st.floats(0, 0.9), st.integers(0, 2**31), st.booleans())
def test_letters_stay_and_keep_their_contrast(ink: int, paper: int, share: float, seed: int, gray: bool) -> None:
    image = Image.new("L", (120, 40), paper)
    ImageDraw.Draw(image).text((8, 8), "letters", fill=ink, font_size=20)
    levels = np.asarray(image)
    pixels = levels[:, :, None] if gray else np.repeat(levels[:, :, None], 3, axis=2)
    colors = tuple(map(tuple, np.random.default_rng(seed).integers(0, 256, (4, 3)).tolist()))
    made = Background(colors=colors, share=share).apply(pixels)  # type: ignore[arg-type]
    assert made.shape == pixels.shape
    luma = made[:, :, 0] if gray else np.asarray(Image.fromarray(made).convert("L"))
    contrast = paper - ink
    if abs(contrast) > 20:
        letters = levels == ink
        # Letters are as they were, but where their edges make the mean of the letters another level.
        assert np.abs(luma[letters].astype(int) - ink).max() <= 0.5 * share * abs(contrast) + 1
        ground = luma[levels == paper].astype(float)
        assert ((ground - ink) * np.sign(contrast)).min() >= (1 - 1.5 * share) * abs(contrast) - 2
    if share == 0:
        np.testing.assert_array_equal(made, pixels)


def test_a_background_takes_its_colours_at_the_corners_and_is_shown() -> None:
    colors = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 9, 9))
    change = Background(colors=colors, share=1.0)
    assert str(change) == "background 1 of #ff0000 #00ff00 #0000ff #090909"
    pixels = np.full((60, 90, 3), 255, np.uint8)
    pixels[25:35, 40:50] = 0
    made = change.apply(pixels)
    for place, color in zip([(0, 0), (0, -1), (-1, -1), (-1, 0)], colors, strict=True):
        # Half a pixel of 60 and of 90 from the corner itself.
        assert np.abs(made[place].astype(int) - color).max() <= 5
    assert (made[30, 45] == 0).all()
    flat = change.apply(np.full((4, 4, 3), 7, np.uint8))
    assert flat.shape == (4, 4, 3)
