"""Lines of text that vary: equal however they are loaded, with the picture around them, and texts that stay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_kinds import LINES, WIDE_LINES
from PIL import Image, ImageDraw
from text_sets import CHARACTERS, pages, write_json_lines

from onestream.preprocess.changes import Background
from onestream.preprocess.training import Augmentation, TextFiles, TextLoader, read_text_lines

READ = WIDE_LINES
OPTIONS: dict[str, Any] = {"characters": CHARACTERS, "columns": lambda width: width // 8}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TextFiles:
    """15 lines in 5 pictures of three formats, stored in four orientations."""
    return read_text_lines(write_json_lines(tmp_path_factory.mktemp("lines"), pages(5)))


def test_a_chain_that_changes_nothing_gives_what_serving_runs(files: TextFiles) -> None:
    never = Augmentation([{"op": "warp", "probability": 0}, {"op": "blur", "probability": 0}])
    made = []
    for chain in (never, None):
        with TextLoader(READ, files, batch_size=4, augmentation=chain, **OPTIONS) as loader:
            made.append(LINES.collect(loader))
    for index, (sample, *_) in made[0].items():
        np.testing.assert_array_equal(sample, made[1][index][0])


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
    definition = READ.model_copy(update={"operations": READ.operations[:2]}).pixels()
    lines = read_text_lines(tmp_path / "lines.jsonl")
    with TextLoader(definition, lines, batch_size=1, augmentation=chain, **OPTIONS) as loader:
        ((sample, *_),) = LINES.collect(loader).values()
    assert sample[0, 0].tolist() == corner
    assert sample[24, 60].tolist() == [0, 0, 255]


@given(
    st.integers(0, 255), st.integers(0, 255), st.floats(0, 0.9), st.integers(0, 2**31),
    st.booleans(),
)  # fmt: skip
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
        assert ((ground - ink) * np.sign(contrast)).min() >= (1 - share) * abs(contrast) - 0.5 * abs(
            contrast
        ) * share - 2
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
