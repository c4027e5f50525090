"""What a build makes of the network's own nature: scores that it ends in, and batches that it cannot take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from builds import build
from networks import ending_in, mean_color

from onestream.postprocess.kinds import read_postprocess
from onestream.postprocess.kinds.classification import Classification, top_k
from onestream.serving.building.build import Built
from onestream.serving.built.triton_config import ModelConfig, from_text
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine import served as served_network
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_postprocess import fused_network
from onestream.serving.pipeline import GpuOptions

# One colour each, so that scores are far from equal: softmax of softmax would be nearly flat.
PIXELS = np.random.default_rng(5).integers(0, 256, (3, 1, 1, 3), dtype=np.uint8).repeat(32, axis=1).repeat(32, axis=2)
FORMS = ["python", "dali-backend"]


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


def build_mine(folder: Path, model: onnx.ModelProto, *, form: Any = "python", **fields: Any) -> Built:
    pipeline_file, onnx_file = files(folder, model, **fields)
    return build(pipeline_file, folder=folder / "repository", onnx_file=onnx_file, form=form)


def classified(**options: Any) -> dict[str, Any]:
    return {"postprocess": {"kind": "classification", "top_k": 3, **options}}


def configs(built: Built) -> dict[str, ModelConfig]:
    """Every configuration by its path."""
    return {
        str(path.relative_to(built.folder)): from_text(path.read_text(encoding="utf-8"))
        for path in built.folder.rglob("*.pbtxt")
    }


def written_activations(built: Built) -> set[str]:
    """What every configuration with a postprocessing says."""
    found = [config.parameters["postprocess"].string_value for config in configs(built).values()]
    options = [read_postprocess(text) for text in found if text]
    assert len(options) == 6  # postprocess, fused and video, each for both kinds of machine
    return {one.activation for one in options if isinstance(one, Classification)}


def fused_results(built: Built) -> dict[str, np.ndarray[Any, Any]]:
    """What the fused network of a GPU answers."""
    options = configs(built)["mine_fused/config.pbtxt"].parameters["postprocess"].string_value
    fused = fused_network(built.folder / "mine_fused" / "1" / "model.onnx", options)
    return OnnxRuntimeEngine(fused, threads=1).run({"pixels": PIXELS})


# ---- scores that a network ends in ----------------------------------------------------------------------------------


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
    built = build_mine(tmp_path, ending_in("Sigmoid"), **classified(), video={})
    assert written_activations(built) == {"none"}
    assert built.notes == [
        "postprocess.activation: none, since the network's output 'scores_out' comes from sigmoid already"
    ]
    own = OnnxRuntimeEngine(built.folder / "mine_model" / "1" / "model.onnx", threads=1).run({"pixels": PIXELS})[
        "scores_out"
    ]
    expected, class_ids = top_k(own, 3, activation="none")
    results = fused_results(built)
    np.testing.assert_array_equal(results["class_ids"], class_ids)
    np.testing.assert_array_equal(results["scores"], expected)


@pytest.mark.parametrize("model", [mean_color(), ending_in("LogSoftmax")])
def test_logits_and_their_logarithms_get_softmax(model: onnx.ModelProto) -> None:
    assert Classification().suited_to(served_network.outputs(model)).activation == "softmax"


@pytest.mark.parametrize("form", FORMS)
def test_softmax_of_scores_is_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(
        BadPipeline, match="'scores_out' comes from softmax already: write activation: none, or leave it out"
    ):
        build_mine(tmp_path, ending_in("Softmax"), form=form, **classified(activation="softmax"))
    assert not (tmp_path / "repository").exists()


def test_none_is_none_for_logits_too() -> None:
    options = Classification(activation="none")
    assert options.suited_to(served_network.outputs(mean_color())) == options


# ---- batches that a network cannot take -----------------------------------------------------------------------------

ALONE = [mean_color(mix_batch=True), mean_color(("n", 3, 32, 32), reshape_to=(1, 3))]
IDS = ["mixes its batch", "one image only"]
ONE_BY_ONE = {"max_batch_size": 1, "gpu": {"max_batch_size": 16}}


@pytest.mark.parametrize(("model", "form"), list(zip(ALONE, FORMS, strict=True)), ids=IDS)
def test_batches_that_the_file_asks_of_such_a_network_are_refused_with_the_way_out(
    tmp_path: Path, model: onnx.ModelProto, form: str
) -> None:
    with pytest.raises(BadNetwork, match=r"max_batch_size is 4: write 1, or leave it out, to serve one image at a"):
        build_mine(tmp_path, model, form=form, **classified(), serving={"max_batch_size": 4})
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize(
    ("model", "form", "serving"),
    [
        (ALONE[0], "python", ONE_BY_ONE),
        (ALONE[1], "dali-backend", {}),
    ],
    ids=FORMS,
)
def test_it_is_served_without_batches_and_the_build_says_so(
    tmp_path: Path, model: onnx.ModelProto, form: str, serving: dict[str, Any]
) -> None:
    built = build_mine(tmp_path, model, form=form, **classified(), serving=serving, video={})
    assert built.notes[0].startswith("one image at a time, on a GPU too: ")
    found = configs(built)
    video = [found.pop(path) for path in list(found) if path.startswith("mine_video/")]
    assert {config.max_batch_size for config in found.values()} == {1}
    assert {warmup.batch_size for config in found.values() for warmup in config.model_warmup} == {1}
    in_video = {config.parameters["network_batch"].string_value for config in video}
    assert in_video == ({"1"} if form == "python" else set())
    on_gpu = [config.parameters["gpu"].string_value for config in found.values()]
    assert {GpuOptions.model_validate_json(text).max_batch_size for text in on_gpu if text} <= {1}
    if form == "dali-backend":
        script = (built.folder / "mine_model" / "build_plan.sh").read_text()
        assert "--maxShapes=pixels:1x32x32x3" in script
        assert "MAX_BATCH_SIZE = 1\n" in (built.folder / "mine_preprocess" / "1" / "dali.py").read_text()


def test_what_was_built_for_one_image_is_not_taken_for_batches(tmp_path: Path) -> None:
    build_mine(tmp_path, ALONE[0], **classified(), serving=ONE_BY_ONE, video={})
    with pytest.raises(BadNetwork, match=r"depends on the other images of its batch; serving\.max_batch_size is 2"):
        build_mine(tmp_path, ALONE[0], **classified(), serving={"max_batch_size": 2})


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
def test_a_pipeline_without_a_network_says_nothing_of_one(
    tmp_path: Path, fields: dict[str, Any], given: bool, named: str
) -> None:
    """A file that was given was served in the place of the pixels."""
    none = {"network": "none", "postprocess": {"kind": "raw"}}
    pipeline_file, onnx_file = files(tmp_path, mean_color(), **none, **fields)
    with pytest.raises(BadPipeline, match=f"^{named} is for a network, and the pipeline has network none"):
        build(pipeline_file, folder=tmp_path / "repository", onnx_file=onnx_file if given else None)
