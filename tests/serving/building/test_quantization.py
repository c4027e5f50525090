"""Networks in int8: what a build makes, keeps and refuses."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import builds
import numpy as np
import onnx
import pytest
from int8_networks import HALVES, SIDE, color_network, in_int8, pictures, pipeline_file, searched
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.measure.parity.network import Network
from onestream.preprocess import Decode, Definition, Normalize, Output, Resize
from onestream.serving.building import build as building
from onestream.serving.building.build import Built, build
from onestream.serving.building.quantization.calibration import Calibration
from onestream.serving.building.quantization.quantize import Quantizable
from onestream.serving.built import certificate
from onestream.serving.built.triton_config import from_text
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.engine.network_files import BUILT_FROM_FILE
from onestream.serving.engine.quantization import Settings
from onestream.serving.errors import BadNetwork, BadPipeline
from onestream.serving.graph.onnx_graph import prepare

NETWORKS = ("colors_model/1/model.onnx", "colors_fused/1/model.onnx")
FLOATS = ("colors_model/1/model.float32.onnx", "colors_fused/1/model.float32.onnx")
FOR_TENSORRT = ("colors_model/1/model.tensorrt.onnx", "colors_fused/1/model.tensorrt.onnx")


def files(repository: Path) -> dict[str, bytes]:
    """Everything in a repository but certificates and the paths of networks."""
    found = [path for path in repository.rglob("*") if path.is_file()]
    left_out = (certificate.FILE_NAME, BUILT_FROM_FILE)
    kept = [path for path in found if not path.name.endswith(left_out)]
    return {path.relative_to(repository).as_posix(): path.read_bytes() for path in kept}


def test_only_the_network_changes_and_the_float_one_stays_beside_it(both: tuple[Path, Path, Built]) -> None:
    before, after = (files(repository) for repository in both[:2])
    changed = {name for name in before if before[name] != after[name]}
    assert {name for name in changed if not name.endswith(".pbtxt")} == set(NETWORKS)
    assert {name for name in set(after) - set(before) if not name.endswith(".tensorrt.onnx")} == set(FLOATS)
    # Each configuration says the precision, and nothing else in it is another.
    for name in (name for name in changed if name.endswith(".pbtxt")):
        one, other = (from_text(content[name].decode()) for content in (before, after))
        for config in (one, other):
            said = [config.parameters[key].string_value for key in ("precision", "gpu")]
            assert ("int8" in "".join(said)) == (config is other)
            del config.parameters["precision"], config.parameters["gpu"]
        assert one == other
    assert [after[name] for name in FLOATS] == [before[name] for name in NETWORKS]


def test_the_served_network_is_of_integers_from_the_pixels_to_the_last_layer(both: tuple[Path, Path, Built]) -> None:
    network = onnx.load_model_from_string(files(both[1])[NETWORKS[0]])
    types = {tensor.name: tensor.data_type for tensor in network.graph.initializer}
    made_by = {name: node for node in network.graph.node for name in node.output}
    layers = [node for node in network.graph.node if node.op_type in ("Conv", "Gemm")]
    assert len(layers) == 4
    for node in layers:
        activation, weights = (made_by[name] for name in node.input[:2])
        assert (activation.op_type, weights.op_type) == ("DequantizeLinear", "DequantizeLinear")
        assert types[activation.input[2]] == onnx.TensorProto.UINT8
        assert types[weights.input[0]] == onnx.TensorProto.INT8
    # The first takes the pixels themselves, and the logits are not rounded.
    assert [node.op_type for node in network.graph.node[:2]] == ["Transpose", "DequantizeLinear"]
    assert made_by["logits"].op_type == "Gemm"
    assert not {"Cast", "Sub", "Div"} & {node.op_type for node in network.graph.node}


def quantized(network: onnx.ModelProto) -> tuple[onnx.ModelProto, Quantizable, np.ndarray]:
    """The network as it is served, and what makes int8 of it, calibrated with noise, which is the third."""
    resize, normalize = Resize(mode="exact", size=(SIDE, SIDE)), Normalize(**HALVES)
    definition = Definition(operations=[Decode(), resize, normalize, Output()])
    served = prepare(network, definition)
    shown = np.random.default_rng(2).integers(0, 256, (4, SIDE, SIDE, 3), dtype=np.uint8)
    return served, Quantizable(served, definition, list(shown)), shown


def test_what_is_made_of_an_output_that_stays_a_float_is_kept() -> None:
    network = color_network()
    network.graph.node.append(helper.make_node("Softmax", ["logits"], ["shares"], name="shares"))
    network.graph.output.append(helper.make_tensor_value_info("shares", onnx.TensorProto.FLOAT, ["batch", 3]))
    served, quantizable, shown = quantized(network)
    made = quantizable.for_cpu(Settings())
    before, after = (
        OnnxRuntimeEngine(one.SerializeToString(), threads=1).run({"pixels": shown[:1]}) for one in (served, made)
    )
    assert list(after) == ["logits", "shares"]
    np.testing.assert_array_equal(after["logits"].argmax(), before["logits"].argmax())
    # Of the logits as they leave, in float32.
    powers = np.exp(after["logits"] - after["logits"].max())
    np.testing.assert_allclose(after["shares"], powers / powers.sum(), atol=1e-6)


def test_the_certificate_states_the_price(both: tuple[Path, Path, Built]) -> None:
    one, other, built = both
    assert certificate.read(one / "colors_fused").quantization is None
    for model in built.models:
        found = certificate.read(other / model).quantization
        assert found == built.quantizations["colors"]
    assert found.door == "pixels"
    assert (found.pictures.calibrated, found.pictures.held_out, found.pictures.refused) == (12, 12, 0)
    assert found.agreement.share == 1
    assert (found.agreement.of, found.agreement.all_of) == (12, 12)
    assert 0 < found.agreement.mean_change <= found.agreement.largest_change < 0.1
    assert found.speed.float32_ms > 0 < found.speed.ms
    assert found.speed.processor.name
    assert len(found.tried) >= 6
    assert found.settings in [tried.settings for tried in found.tried]
    best = max(tried.agreement.rank for tried in found.tried)
    assert found.agreement.rank == best


def test_another_precision_takes_its_place(tmp_path: Path) -> None:
    first = in_int8(tmp_path)
    before = files(first.folder)
    file, own, other = (tmp_path / name for name in ("colors.yaml", "colors.onnx", "other.onnx"))
    other.write_bytes(color_network(confidence=20).SerializeToString())
    with pytest.raises(BadPipeline, match="--calibrate PHOTOS"):
        build(file, folder=first.folder, onnx_file=other, precision="int8")
    assert set(FOR_TENSORRT) <= set(before)
    back = build(file, folder=first.folder, onnx_file=own)
    assert {path.name for path in back.written} == {"model.onnx", "config.pbtxt", "cpu.pbtxt", certificate.FILE_NAME}
    after = files(first.folder)
    assert not set(after) & {*FLOATS, *FOR_TENSORRT}
    assert after[NETWORKS[0]] == before[FLOATS[0]]
    with pytest.raises(BadPipeline, match="--calibrate PHOTOS"):
        build(file, folder=first.folder, onnx_file=own, precision="int8")


def test_labels_put_accuracy_in_the_place_of_agreement(tmp_path: Path) -> None:
    shown = pictures(tmp_path / "pictures")
    rows = [f"{path.name},{path.stem.partition('-')[2]}" for path in shown]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    found = searched(tmp_path, labels=tmp_path / "labels.csv")[1]
    assert found.agreement.accuracy == {"float32": 1.0, "int8": 1.0}
    assert found.agreement.measure == "accuracy of int8 by accuracy of float32"
    assert found.labels_sha256 is not None
    (tmp_path / "labels.csv").write_text("\n".join(f"{path.name},{(n + 1) % 3}" for n, path in enumerate(shown)))
    with pytest.raises(BadPipeline, match="names the right class of none"):
        searched(tmp_path, labels=tmp_path / "labels.csv")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a.png,pink", "line 1: 'pink' is no class"),
        ("a.png,red\nb.png", "line 2: expected PICTURE,CLASS"),
        ("a.png,3", "line 1: class 3; the network has 0 to 2"),
        ("a.png,red\na.png,0\na.png,blue", "line 3: 'a.png' has another class before"),
        ("a.png," + "9" * 5000, "line 1: '9{80}' is no class of the network, and no number"),
        ("a.png,²", "line 1: '²' is no class"),
    ],
)
def test_labels_that_cannot_be_read_are_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(BadPipeline, match=said):
        in_int8(tmp_path, labels=tmp_path / "labels.csv")


def test_too_few_pictures_are_refused_and_those_that_were_refused_named(tmp_path: Path) -> None:
    file, own = pipeline_file(tmp_path, color_network())
    shown = pictures(tmp_path / "pictures", count=7)
    bad, sparse = (tmp_path / "pictures" / name for name in ("bad.png", "sparse.png"))
    bad.write_bytes(b"this is no picture")
    sparse.touch()
    os.truncate(sparse, 30 << 30)
    in_repository = partial(build, file, folder=tmp_path / "repository", onnx_file=own, precision="int8")
    for given in ([], shown, [*shown, shown[0]], [*shown, bad]):
        with pytest.raises(BadPipeline, match=f"at least 8 different ones, .* got {min(len(given), 7)}") as caught:
            in_repository(calibration=Calibration(pictures=given))
        assert ("bad.png" in str(caught.value)) == (bad in given)
    with pytest.raises(BadPipeline, match=r"sparse\.png: it has 32212254720 bytes; at most \d+ are read"):
        in_repository(calibration=Calibration(pictures=[*shown, sparse]))
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "a.png")
    with pytest.raises(BadPipeline, match=r"a\.png: not a regular file; expected a picture"):
        in_repository(calibration=Calibration(pictures=[tmp_path / "pipe" / "a.png"]))
    calibration = Calibration(pictures=pictures(tmp_path / "enough"), labels=sparse)
    with pytest.raises(BadPipeline, match=r"sparse\.png: it has 32212254720 bytes"):
        in_repository(calibration=calibration)


def test_what_cannot_be_calibrated_is_refused(tmp_path: Path) -> None:
    for least in (-0.1, 1.1):
        with pytest.raises(BadPipeline, match="from 0 to 1"):
            Calibration(pictures=[], min_agreement=least)
    file, own = pipeline_file(tmp_path, color_network())
    in_repository = partial(build, file, folder=tmp_path / "repository", onnx_file=own)
    with pytest.raises(BadPipeline, match="--precision int8"):
        in_repository(calibration=Calibration(pictures=[]))
    with pytest.raises(BadPipeline, match="dali-backend takes float32"):
        in_repository(form="dali-backend", precision="int8")
    file.write_text(file.read_text().replace("- blue", "- blue\n  - black"))
    told: list[str] = []
    calibration = Calibration(pictures=pictures(tmp_path / "pictures"))
    with pytest.raises(BadPipeline, match="labels has 4 names, the network has 3 classes"):
        in_repository(calibration=calibration, precision="int8", progress=told.append)
    assert not any("int8" in line for line in told), "before anything takes long"
    network = color_network(layers=1)
    pool, flatten = (next(node for node in network.graph.node if node.name == name) for name in ("pooled", "flat"))
    pool.input[0], flatten.output[0] = "input", "logits"
    del network.graph.node[:]
    network.graph.node.extend([pool, flatten])
    with pytest.raises(BadNetwork, match="this one has none"):
        in_int8(tmp_path, network)


def test_the_command_and_its_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "build", builds.build)
    file, own = pipeline_file(tmp_path, color_network())
    pictures(tmp_path / "pictures")
    command = ["build", file, "--onnx", own, "--repository", tmp_path / "repository", "--precision", "int8"]
    plot = tmp_path / "plot.png"
    options = ["--calibrate", tmp_path / "pictures", "--plot", plot]
    ended = CliRunner().invoke(app, [*map(str, [*command, *options])])
    assert ended.exit_code == 0, ended.output
    assert "colors in int8: best classes with a score above 0.5 that are the same: 1.000 of 12, " in ended.output
    assert "on 12 held-out pictures, 95 % sure to be 0.76 or more; " in ended.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "repository" / "colors" / certificate.FILE_NAME).read_text())["quantization"]
    assert found["precision"] == "int8"
    for wrong, options in (
        ("--labels, --min-agreement and --plot go with --calibrate", ["--plot", plot]),
        ("--labels, --min-agreement and --plot go with --calibrate", ["--min-agreement", "0.9"]),
        ("allowed are names that end in .png", ["--calibrate", tmp_path, "--plot", tmp_path / "plot.txt"]),
        ("its folder does not exist", ["--calibrate", tmp_path, "--plot", tmp_path / "nowhere" / "plot.png"]),
    ):
        refused = CliRunner().invoke(app, [*map(str, [*command, *options])], env={"COLUMNS": "1000"})
        assert refused.exit_code == 2
        assert wrong in refused.output


def test_a_network_that_int8_ruins_ends_the_command_and_leaves_what_is_served(tmp_path: Path) -> None:
    """The precision of the file suffices."""
    repository, ruined = tmp_path / "repository", color_network(layers=1, constant=3e4)
    builds.build(pipeline_file(tmp_path, color_network())[0], folder=repository, onnx_file=tmp_path / "colors.onnx")
    before = files(repository)
    file, own = pipeline_file(tmp_path, ruined, precision="int8")
    pictures(tmp_path / "pictures")
    (tmp_path / "empty").mkdir()
    command = ["build", str(file), "--onnx", str(own), "--repository", str(repository), "--calibrate"]
    ended = CliRunner().invoke(app, [*command, str(tmp_path / "pictures")], env={"COLUMNS": "1000"})
    assert ended.exit_code == 1, ended.output
    said = "cannot build: int8 would cost too much: best classes with a score above 0.5 that are the same: 0."
    assert all(one in ended.output for one in (said, "min_agreement is 0.97", "The nearest of ", "weights per "))
    ended = CliRunner().invoke(app, [*command, str(tmp_path / "empty")], env={"COLUMNS": "1000"})
    assert ended.exit_code == 1
    assert "no images" in ended.output
    assert files(repository) == before


def test_parity_judges_by_the_network_in_float32(both: tuple[Path, Path, Built]) -> None:
    """So what a server in int8 departs by holds the price of int8."""
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    found = []
    for repository in both[:2]:
        network = Network.built(repository, both[2].pipeline)
        found.append(network.outputs(pixels)["logits"])
    assert np.array_equal(*found)
    in_int8 = OnnxRuntimeEngine(both[1] / NETWORKS[0], threads=1).run({"pixels": pixels[None]})["logits"]
    assert not np.array_equal(found[0], in_int8)


def test_a_bias_and_normalization_after_a_convolution_are_not_rounded_apart() -> None:
    network = color_network(layers=1)
    graph = network.graph
    convolution = next(node for node in graph.node if node.op_type == "Conv")
    channels = next(one for one in graph.initializer if one.name == convolution.input[1]).dims[0]
    name, statistics = convolution.output[0], [np.ones(channels, np.float32)] * 4
    convolution.output[0] = "convolved"
    for values, label in zip(statistics, ("scale", "shift", "mean", "variance"), strict=True):
        graph.initializer.append(numpy_helper.from_array(values, label))
    graph.initializer.append(numpy_helper.from_array(np.ones((1, channels, 1, 1), np.float32), "bias_after"))
    place = list(graph.node).index(convolution) + 1
    graph.node.insert(place, helper.make_node("Add", ["convolved", "bias_after"], ["biased"], "bias"))
    graph.node.insert(
        place + 1,
        helper.make_node("BatchNormalization", ["biased", "scale", "shift", "mean", "variance"], [name], "normalized"),
    )
    _, quantizable, _ = quantized(network)
    left = {node.op_type for node in quantizable.for_cpu(Settings()).graph.node}
    assert not left & {"Add", "BatchNormalization"}
    assert convolution.name in quantizable.layers
