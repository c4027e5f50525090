"""Detectors of transformers: the folder that one is saved in becomes a pipeline that finds what transformers finds."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import yaml
from agreement import printed_pipeline
from lazily import Lazily
from networks import network_of
from onnx import helper
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.postprocess.kinds import Opening
from onestream.postprocess.kinds.detection import Detection
from onestream.preprocess import CannotImport
from onestream.preprocess.interop import from_huggingface, import_source
from onestream.serving.graph.detector_tail import append_tail

torch, transformers = Lazily("torch"), Lazily("transformers")
SIZE = {"height": 96, "width": 128}
NAMES = {0: "N/A", 1: "person", 2: "no", 3: "traffic light", 4: "Tür"}
QUERIES = 120
"""More than the 100 that some keep."""
DETECTORS = {
    "conditional_detr": ("ConditionalDetr", "sigmoid"),
    "d_fine": ("RTDetr", "sigmoid"),
    "deformable_detr": ("DeformableDetr", "sigmoid"),
    "detr": ("Detr", "softmax"),
    "rf_detr": ("RfDetr", "sigmoid"),
    "rt_detr": ("RTDetr", "sigmoid"),
    "rt_detr_v2": ("RTDetr", "sigmoid"),
    "yolos": ("Yolos", "softmax"),
}
"""The image processor of each, and what makes its scores."""


def processor(name: str) -> Any:
    made = getattr(transformers, f"{name}ImageProcessor{'' if name == 'RfDetr' else 'Pil'}")
    return made(size=SIZE)


def saved(folder: Path, model_type: str, /, **fields: Any) -> Path:
    """The two files of a model on the hub."""
    config = transformers.AutoConfig.for_model(model_type, id2label=NAMES, num_queries=QUERIES)
    config.architectures = ["AnyForObjectDetection"]
    config.save_pretrained(folder)
    if fields:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    processor(DETECTORS[model_type][0]).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model_type", DETECTORS)
def test_it_finds_what_transformers_finds(model_type: str, tmp_path: Path) -> None:
    name, activation = DETECTORS[model_type]
    pipeline = printed_pipeline(tmp_path, str(saved(tmp_path, model_type)))
    options = pipeline.postprocess
    assert isinstance(options, Detection)
    assert (options.family, options.activation, options.suppresses) == ("detr", activation, "none")
    assert options.labels == tuple(NAMES.values())
    assert pipeline.preprocess == from_huggingface(processor(name).to_dict())

    columns = len(NAMES) + (activation == "softmax")
    random = np.random.default_rng(3)
    logits = random.normal(scale=2, size=(1, QUERIES, columns)).astype(np.float32)
    center, size = random.uniform(0.3, 0.7, (1, QUERIES, 2)), random.uniform(0.05, 0.5, (1, QUERIES, 2))
    boxes = np.concatenate([center, size], axis=2).astype(np.float32)
    outputs = SimpleNamespace(logits=torch.from_numpy(logits), pred_boxes=torch.from_numpy(boxes))
    height, width = 300, 500
    (theirs,) = getattr(transformers, f"{name}ImageProcessor")().post_process_object_detection(
        outputs, threshold=options.score_threshold, target_sizes=[(height, width)]
    )
    order = np.argsort(-theirs["scores"].numpy(), kind="stable")

    # As the network gives them.
    dims = {"logits": ("batch", QUERIES, columns), "pred_boxes": ("batch", QUERIES, 4)}
    nodes = [helper.make_node("Identity", [f"{name}_in"], [name]) for name in dims]
    served = network_of(nodes, {f"{name}_in": shape for name, shape in dims.items()}, dims, opset=17)
    append_tail(served, options, network_hw=(SIZE["height"], SIZE["width"]), max_candidates=options.max_candidates)
    session = onnxruntime.InferenceSession(served.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    candidates = dict(zip(names, session.run(None, {"logits_in": logits, "pred_boxes_in": boxes}), strict=True))
    postprocess = options.open(Opening(pipeline.preprocess, labels=[*NAMES.values()]))
    (found,) = postprocess(candidates, [(height, width)])
    assert len(order) > 5
    np.testing.assert_array_equal(found["class_ids"][0], theirs["labels"].numpy()[order])
    np.testing.assert_allclose(found["scores"][0], theirs["scores"].numpy()[order], rtol=1e-5)
    # Ours are clipped to the picture; 500 pixels in float32.
    expected = np.clip(theirs["boxes"].numpy()[order], 0, (width, height, width, height))
    np.testing.assert_allclose(found["boxes"][0], expected, atol=1e-3)


def test_the_loss_decides_what_makes_scores_and_all_classes_are_named(tmp_path: Path) -> None:
    options = printed_pipeline(tmp_path, str(saved(tmp_path, "rt_detr", use_focal_loss=False))).postprocess
    assert isinstance(options, Detection)
    assert options.activation == "softmax"
    saved(tmp_path, "rt_detr", id2label={"0": "a", "2": "b"})
    with pytest.raises(CannotImport, match="id2label has the numbers 0, 2; expected 0 to 1"):
        import_source(str(tmp_path))


@pytest.mark.parametrize(
    "fields", [{"architectures": ["RTDetrModel"]}, {"architectures": None}, {"model_type": "owlvit"}], ids=str
)
def test_a_network_whose_outputs_are_not_known_keeps_them(fields: dict[str, Any], tmp_path: Path) -> None:
    saved(tmp_path, "rt_detr", **fields)
    printed = CliRunner().invoke(app, ["import", str(tmp_path / "preprocessor_config.json")]).stdout
    assert yaml.safe_load(printed)["postprocess"] == {"kind": "raw"}
    assert ("'owlvit'" in printed) == ("model_type" in fields)
