"""Every GPU backend against the reference, by stage, and its predictions against the reference's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onestream.preprocess import BadImage, Decode, Definition, Letterbox, Output, compile
from onestream.preprocess.backends.base import BackendName, DecodeOptions, Sample
from onestream.preprocess.tolerances import Stage, compare, tolerance

STAGES: tuple[Stage, ...] = ("decode", "resize", "crop", "normalize")
FORMS: dict[str, tuple[BackendName, DecodeOptions]] = {
    "cvcuda": ("cvcuda", DecodeOptions("gpu")),
    "cvcuda, hybrid decode": ("cvcuda", DecodeOptions("hybrid")),
    "cvcuda, JPEG hardware": ("cvcuda", DecodeOptions("gpu", hw_load=1.0)),
    "dali": ("dali", DecodeOptions("gpu")),
    "dali, hybrid decode": ("dali", DecodeOptions("hybrid")),
    "dali, JPEG hardware": ("dali", DecodeOptions("gpu", hw_load=1.0)),
}


@pytest.fixture(scope="module")
def expected(files: dict[str, bytes], definition: Definition) -> dict[Stage, list[Sample | BadImage]]:
    """The reference's samples of every stage."""
    return {stage: compile(definition.stage(stage)).run([*files.values()]) for stage in STAGES}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_is_within_the_table(
    form: str,
    stage: Stage,
    files: dict[str, bytes],
    definition: Definition,
    expected: dict[Stage, list[Sample | BadImage]],
    record: Any,
) -> None:
    backend, decode = FORMS[form]
    cut = definition.stage(stage)
    compiled = compile(cut, backend=backend, device="gpu", max_batch_size=16, decode=decode)
    seen = compiled.run([*files.values()])
    compiled.close()
    comparisons = []
    for name, one, other in zip(files, expected[stage], seen, strict=True):
        assert not isinstance(other, BadImage), (name, other)
        assert not isinstance(one, BadImage)
        comparisons.append((name, compare(one, other, definition=cut, stage=stage, backend=backend, device="gpu")))
    worst = max(comparisons, key=lambda item: item[1].max)
    mean = float(np.mean([one.mean for _, one in comparisons]))
    allowed = tolerance(backend, stage, device="gpu")
    record(f"{form}, {stage}: largest difference, levels ({worst[0]})", worst[1].max, f"≤ {allowed.max_level:g}")
    record(f"{form}, {stage}: mean difference, levels", mean, "≤ 0.5 after resize" if stage != "decode" else "")
    record(
        f"{form}, {stage}: share above one level",
        max(one.share_above_one for _, one in comparisons),
        f"≤ {allowed.share_above_one:g}",
    )
    # The JPEG hardware is opt-in just because its upsampling may differ: its figures are recorded, not judged.
    if not decode.hw_load:
        assert [name for name, one in comparisons if not one.within] == []
        assert stage == "decode" or mean <= 0.5


@pytest.mark.parametrize("form", FORMS)
def test_no_prediction_flips(
    form: str, files: dict[str, bytes], definition: Definition, network: Any, decided: list[str], record: Any
) -> None:
    backend, decode = FORMS[form]
    judged = {name: files[name] for name in decided}
    compiled = compile(definition.pixels(), backend=backend, device="gpu", max_batch_size=16, decode=decode)
    seen, expected = compiled.run([*judged.values()]), compile(definition.pixels()).run([*judged.values()])
    compiled.close()
    flips = [
        name
        for name, one, other in zip(judged, expected, seen, strict=True)
        if network(one).argmax() != network(other).argmax()
    ]
    record(f"{form}: flipped predictions of {len(judged)} that are decided", len(flips), "0")
    if not decode.hw_load:
        assert flips == []


@pytest.mark.parametrize("form", FORMS)
def test_letterboxes_and_batches(form: str, files: dict[str, bytes]) -> None:
    """Borders are exact, and an image's pixels do not depend on its batch."""
    backend, decode = FORMS[form]
    definition = Definition(operations=[Decode(), Letterbox(size=(320, 320)), Output(layout="NHWC", dtype="uint8")])
    chosen = [*files.values()][:12]
    (alone, together) = (
        compile(definition, backend=backend, device="gpu", max_batch_size=size, decode=decode).run(chosen)
        for size in (1, 12)
    )
    for one, other, expected in zip(alone, together, compile(definition).run(chosen), strict=True):
        assert not isinstance(one, BadImage)
        assert not isinstance(other, BadImage)
        assert not isinstance(expected, BadImage)
        np.testing.assert_array_equal(one, other)
        border = (expected == 114).all(axis=(1, 2))
        np.testing.assert_array_equal(one[border], expected[border])
