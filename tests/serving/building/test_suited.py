"""What a build makes of the network's own nature: scores that it ends in, batches that it cannot take; and of none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from builds import build
from networks import ending_in, mean_color
from onnx.reference import ReferenceEvaluator
from planned_models import written

from onestream.postprocess.kinds import read_postprocess
from onestream.postprocess.kinds.classification import Classification
from onestream.preprocess import Decode, Definition, Output, Patches
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import served as served_network
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.no_network import of_patches
from onestream.serving.pipeline import GpuOptions, Pipeline


def files(folder: Path, model: onnx.ModelProto, **fields: Any) -> tuple[Path, Path]:
    """A pipeline file and its network."""
    operations = [
        {"op": "decode"},
        {"op": "resize", "mode": "exact", "size": [32, 32]},
        {"op": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
    ]
    (folder / "mine.onnx").write_bytes(model.SerializeToString())
    (folder / "mine.yaml").write_text(yaml.safe_dump({"preprocess": {"operations": operations}, **fields}))
    return folder / "mine.yaml", folder / "mine.onnx"


def classified(**options: Any) -> dict[str, Any]:
    return {"postprocess": {"kind": "classification", "top_k": 3, **options}}


@pytest.mark.parametrize(
    ("operators", "activation"),
    [
        (["Softmax"], "softmax"),
        (["Softmax", "Identity"], "softmax"),
        (["Cast", "Softmax", "Cast"], "softmax"),
        (["parts"], "softmax"),
        (["Sigmoid"], "sigmoid"),
        (["Identity"], None),
        (["Softmax", "Log"], None),
        (["LogSoftmax"], None),
        (["Sigmoid", "Relu"], None),
    ],
)
def test_a_network_shows_what_it_ends_in(operators: list[str], activation: str | None) -> None:
    (output,) = served_network.outputs(ending_in(*operators))
    assert output.activation == activation


def test_a_division_of_other_things_is_no_softmax() -> None:
    model = ending_in("parts")
    (divided,) = (node for node in model.graph.node if node.op_type == "Div")
    for inputs in (["sums", "exponentials"], ["before", "sums"], ["exponentials", "exponentials"]):
        divided.input[:] = inputs
        assert served_network.outputs(model)[0].activation is None


def test_scores_of_a_network_are_served_as_they_are(tmp_path: Path) -> None:
    folder, notes = written(files(tmp_path, ending_in("Sigmoid"), **classified(), video={})[0], ending_in("Sigmoid"))
    assert notes == ["postprocess.activation: none, since the network's output 'scores_out' comes from sigmoid already"]
    texts = [from_text(path.read_text()).parameters["postprocess"].string_value for path in folder.rglob("*.pbtxt")]
    options = [read_postprocess(text) for text in texts if text]
    # Postprocess, fused and video, each for both kinds of machine.
    assert [isinstance(one, Classification) and one.activation for one in options] == ["none"] * 6


@pytest.mark.parametrize(
    ("model", "said", "served"),
    [
        (mean_color(), "auto", "softmax"),
        (ending_in("LogSoftmax"), "auto", "softmax"),
        (mean_color(), "none", "none"),
    ],
)
def test_logits_get_softmax_unless_the_file_says_none(model: onnx.ModelProto, said: Any, served: str) -> None:
    assert Classification(activation=said).suited_to(served_network.outputs(model)).activation == served


ALONE = [mean_color(mix_batch=True), mean_color(("n", 3, 32, 32), reshape_to=(1, 3))]
"""One mixes its batch, one takes one image only."""


@pytest.mark.parametrize("form", ["python", "dali-backend"])
@pytest.mark.parametrize(
    ("model", "fields", "said"),
    [
        (ending_in("Softmax"), {"activation": "softmax"}, "'scores_out' comes from softmax already: write activation"),
        (ALONE[0], {}, r"max_batch_size is 4: write 1, or leave it out, to serve one image at a"),
        (ALONE[1], {}, r"max_batch_size is 4: write 1, or leave it out, to serve one image at a"),
    ],
)
def test_what_the_network_cannot_be_asked_for_is_refused_with_the_way_out(
    tmp_path: Path, model: onnx.ModelProto, fields: dict[str, Any], said: str, form: Any
) -> None:
    file, onnx_file = files(tmp_path, model, **classified(**fields), serving={"max_batch_size": 4})
    with pytest.raises((BadNetwork, BadPipeline), match=said):
        build(file, folder=tmp_path / "repository", onnx_file=onnx_file, form=form)
    assert not (tmp_path / "repository").exists()


def test_it_is_served_without_batches_and_the_build_says_so(tmp_path: Path) -> None:
    fields = classified() | {"serving": {"max_batch_size": 1, "gpu": {"max_batch_size": 16}}, "video": {}}
    folder, notes = written(files(tmp_path, ALONE[0], **fields)[0], ALONE[0])
    stock, said = written(files(tmp_path, ALONE[1], **classified(), video={})[0], ALONE[1], "dali-backend")
    for place, lines in ((folder, notes), (stock, said)):
        assert lines[0].startswith("one image at a time, on a GPU too: ")
        found = {path: from_text(path.read_text()) for path in place.rglob("*.pbtxt")}
        video = [found.pop(path) for path in list(found) if "mine_video" in path.parts]
        assert {config.max_batch_size for config in found.values()} == {1}
        assert {warmup.batch_size for config in found.values() for warmup in config.model_warmup} == {1}
        in_video = {config.parameters["network_batch"].string_value for config in video}
        assert in_video == ({"1"} if place == folder else set())
        on_gpu = [config.parameters["gpu"].string_value for config in found.values()]
        assert {GpuOptions.model_validate_json(text).max_batch_size for text in on_gpu if text} <= {1}
    assert "--maxShapes=pixels:1x32x32x3" in (stock / "mine_model" / "build_plan.sh").read_text()
    assert "MAX_BATCH_SIZE = 1\n" in (stock / "mine_preprocess" / "1" / "dali.py").read_text()


@pytest.mark.parametrize(
    ("fields", "given", "named"),
    [
        ({}, True, "--onnx .*mine.onnx"),
        ({"network_inputs": {"pixels_taken": "pixels"}}, False, "network_inputs"),
        ({"network_outputs": ["pixel_values"]}, False, "network_outputs"),
        ({"serving": {"precision": "int8"}}, False, "serving.precision int8"),
        ({"serving": {"gpu": {"precision": "fp16"}}}, False, "serving.gpu.precision fp16"),
    ],
)
def test_a_pipeline_without_a_network(tmp_path: Path, fields: dict[str, Any], given: bool, named: str) -> None:
    """A file that was given was served in the place of the pixels."""
    none = {"network": "none", "postprocess": {"kind": "raw"}}
    pipeline_file, onnx_file = files(tmp_path, mean_color(), **none, **fields)
    with pytest.raises(BadPipeline, match=f"^{named} is for a network, and the pipeline has network none"):
        build(pipeline_file, folder=tmp_path / "repository", onnx_file=onnx_file if given else None)


PLANES = Definition(operations=[Decode(), Output(layout="NCHW", dtype="uint8")])


@pytest.mark.parametrize("rows", [{}, {"order": "raster", "flatten": False}, {"layout": "THWC"}], ids=str)
def test_the_graph_of_patches_gives_the_rows_that_the_definition_states(rows: dict[str, Any]) -> None:
    patches = Patches(patch=3, temporal=2, merge=2, **rows)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 12, 18, 3), np.uint8)
    values, grids = ReferenceEvaluator(of_patches(PLANES, patches)).run(None, {"planes": pixels.transpose(0, 3, 1, 2)})
    np.testing.assert_array_equal(values, np.stack([patches.rows(one) for one in pixels]), strict=True)
    assert grids.tolist() == [[1, 4, 6]] * 2


def test_padded_patches_are_refused() -> None:
    operations = [
        {"op": "decode"},
        {"op": "resize", "mode": "patches", "max_patches": 9, "multiple_of": 4},
        {"op": "patches", "patch": 4, "merge": 1, "pad_to": 9},
    ]
    fields = {"name": "padded", "network": "none", "preprocess": {"operations": operations}}
    with pytest.raises(BadPipeline, match=r"with layout image or pad_to, which onestream.*makes in process"):
        Pipeline.from_fields(Path("padded.yaml"), fields | {"postprocess": {"kind": "raw"}})
