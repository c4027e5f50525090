"""Lines of text: samples are those of serving in every bit, and targets are what CTC's loss takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loader_kinds import LINES, WIDE_LINES
from text_sets import CHARACTERS, Page, pages, tilted, write_json_lines

from onestream.preprocess import (
    WHOLE_PICTURE,
    BadSample,
    CannotCompile,
    Decode,
    Definition,
    Limits,
    compile,
    compile_from_picture,
)
from onestream.preprocess.training import TextFiles, TextLoader, read_text_lines

READ = WIDE_LINES
BOX = Definition.model_validate(
    {
        "operations": [
            {"op": "region", "of": "find", "shape": "box", "margin": 0.3},
            {"op": "resize", "mode": "exact", "size": [32, 100], "filter": "bicubic"},
            {"op": "normalize", "mean": [0.5, 0.4, 0.3], "std": [0.5, 0.6, 0.7]},
        ]
    }
)
GRAY = Definition.model_validate(
    {
        "operations": [
            {"op": "region", "of": "find", "shape": "quad", "color": "gray", "min_side": 5},
            {"op": "resize", "mode": "height", "size": [20, 75]},
            {"op": "output", "layout": "NHWC", "dtype": "uint8"},
        ]
    }
)
DEFINITIONS = [pytest.param(READ, id="read"), pytest.param(BOX, id="box"), pytest.param(GRAY, id="gray")]
PAGES = pages(9)
OPTIONS: dict[str, Any] = {"characters": CHARACTERS, "columns": lambda width: width // 8}


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


def test_targets_are_what_the_ctc_loss_takes(files: TextFiles) -> None:
    loss = torch.nn.CTCLoss(reduction="none")
    with TextLoader(READ, files, batch_size=4, shuffle=True, **OPTIONS) as loader:
        for batch in loader:
            assert batch.texts == [files.samples[index].text for index in batch.indices.tolist()]
            assert batch.target_lengths.tolist() == [len(text) for text in batch.texts]
            spelled = "".join(CHARACTERS[number - 1] for number in batch.targets.tolist())
            assert spelled == "".join(batch.texts)
            assert batch.input_lengths.tolist() == [width // 8 for width in batch.widths.tolist()]
            columns = batch.images.shape[3] // 8
            log_probs = torch.randn(columns, len(batch.texts), len(loader.characters)).log_softmax(2)
            assert torch.isfinite(loss(log_probs, *batch[1:4])).all()


def test_padding_samples_have_no_loss(files: TextFiles) -> None:
    with TextLoader(READ, files, batch_size=4, last_batch="pad", **OPTIONS) as loader:
        *_, last = loader
    assert last.indices.tolist() == [24, -1, -1, -1]
    assert last.texts[1:] == ["", "", ""]
    for lengths in (last.input_lengths, last.target_lengths, last.widths):
        assert lengths[0] > 0
        assert lengths[1:].tolist() == [0, 0, 0]
    log_probs = torch.randn(last.images.shape[3] // 8, 4, len(CHARACTERS) + 1).log_softmax(2)
    assert torch.nn.CTCLoss(reduction="none")(log_probs, *last[1:4])[1:].tolist() == [0, 0, 0]


def test_a_picture_is_read_once_for_all_of_its_lines_in_a_window(
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


def test_lines_that_show_to_be_bad_fail_at_once_or_are_skipped(tmp_path: Path) -> None:
    line = tilted(100, 60, 80, 20, 10)
    texts = ["", "a", "Ab", "ab", "aaaaaaaaaaaaa", "b"]
    page = Page("a.png", (120, 200), tuple((line, text) for text in texts))
    small = Page("b.png", (120, 200), ((tilted(100, 60, 80, 4, 10), "small"), (tilted(100, 60, 80, 14, 0), "c")))
    files = read_text_lines(write_json_lines(tmp_path, [page, small]))
    least = READ.model_dump()
    least["operations"][0]["min_side"] = 6
    definition = Definition.model_validate(least)
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
    fixed = READ.model_dump()
    fixed["operations"][2]["multiple_of"] = [0, 0]
    definition = Definition.model_validate(fixed)
    lines = ((tilted(100, 60, 120, 20, 0), "ab"), (tilted(100, 60, 50, 20, 0), "cd"))
    files = read_text_lines(write_json_lines(tmp_path, [Page("a.png", (120, 200), lines)]))
    with pytest.raises(BadSample, match=r"text 1: .*pads to 160x48 pixels, which cannot hold the 288x48"):
        TextLoader(definition, files, batch_size=2, **OPTIONS)
    with pytest.raises(BadSample, match=r"text 1: .*too_many_pixels.*would have 288x48 = 13824 pixels; at most 1000"):
        TextLoader(READ, files, batch_size=2, limits=Limits(max_pixels=10_000), **OPTIONS)
    with TextLoader(definition, files, batch_size=2, bad_files="skip", **OPTIONS) as loader:
        (batch,) = loader
    assert batch.texts == ["cd"]
    assert batch.images.shape == (1, 3, 48, 160)


def test_pictures_that_turn_out_to_be_bad_fail_or_are_skipped(tmp_path: Path) -> None:
    pictures = pages(6, seed=2)
    files = read_text_lines(write_json_lines(tmp_path, pictures))
    (tmp_path / pictures[0].name).unlink()
    Page(pictures[1].name, (64, 128), ()).save(tmp_path)
    damaged = tmp_path / pictures[3].name
    damaged.write_bytes(damaged.read_bytes()[:2000])
    options = {**OPTIONS, "batch_size": 4}
    with (
        TextLoader(READ, files, **options) as loader,
        pytest.raises(BadSample, match=r"img_000\.jpg: lines\.jsonl line 1, text 1: the file cannot be read: No such"),
    ):
        list(loader)
    with TextLoader(READ, files, bad_files="skip", **options) as loader:
        texts = [text for batch in loader for text in batch.texts]
        reasons = {Path(one.name.partition(":")[0]).name: one.reason for one in loader.skipped}
    assert texts == [text for number in (2, 4, 5) for _, text in pictures[number].lines]
    height, width = pictures[1].size_hw
    assert reasons[pictures[1].name] == (
        f"the picture has 128x64 pixels after its EXIF orientation; when its lines were read it had {width}x{height}"
    )
    assert "corrupt" in reasons[pictures[3].name]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"definition": Definition(operations=(Decode(),))}, CannotCompile, "begins with region, got decode"),
        (
            {
                "definition": Definition.model_validate(
                    {"operations": [{"op": "region", "of": "a"}, {"op": "resize", "mode": "longer", "size": 64}]}
                )
            },
            CannotCompile,
            "one height",
        ),
        ({"backend": "cvcuda"}, CannotCompile, "cvcuda"),
        ({"window": 0}, ValueError, "window must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_named(
    files: TextFiles, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    options = {"definition": READ, "batch_size": 2, **OPTIONS, **change}
    with pytest.raises(error, match=message):
        TextLoader(options.pop("definition"), files, **options)


def test_within_an_epoch_the_window_may_not_change(files: TextFiles) -> None:
    with TextLoader(READ, files, batch_size=2, shuffle=True, window=len(files), **OPTIONS) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with TextLoader(READ, files, batch_size=2, shuffle=True, window=4, **OPTIONS) as loader:
        with pytest.raises(ValueError, match="the state is of a loader with window 13; this one has 2"):
            loader.load_state_dict(state)
        loader.load_state_dict(state | {"batches": 0})
