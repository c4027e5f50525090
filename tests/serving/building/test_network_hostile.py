"""ONNX files that are malformed or made to harm the build: one clear line each, in bounded time, nothing written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
import yaml
from networks import CLASSES, mean_color, network_of
from onnx import TensorProto, helper, numpy_helper

from onestream.preprocess import Definition
from onestream.serving.building.onnx_process import prepare_file
from onestream.serving.errors import BadNetwork

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_build_steps")]
OPERATIONS = [
    {"op": "decode"},
    {"op": "resize", "mode": "exact", "size": [32, 32]},
    {"op": "normalize", "mean": [0, 0, 0], "std": [1, 1, 1]},
]
DEFINITION = Definition.model_validate({"operations": OPERATIONS})
IMAGES, SCORES = ["batch", 3, 32, 32], ["batch", CLASSES]
BUILD = "import sys; from onestream.cli.main import main; sys.argv = ['onestream', 'build', *sys.argv[1:]]; main()"


def changed(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = mean_color()
    change(model)
    return model.SerializeToString()


def graph_of(nodes: list[onnx.NodeProto], *, output: onnx.ValueInfoProto | None = None) -> bytes:
    model = network_of(nodes, {"input": IMAGES}, {"scores_out": SCORES})
    if output is not None:
        model.graph.output[0].CopyFrom(output)
    return model.SerializeToString()


def endless_loop() -> bytes:
    nodes = [helper.make_node("Identity", ["on"], ["still_on"]), helper.make_node("Sin", ["carried"], ["carried_on"])]
    taken = [("round", TensorProto.INT64, []), ("on", TensorProto.BOOL, []), ("carried", TensorProto.FLOAT, None)]
    given = [("still_on", TensorProto.BOOL, []), ("carried_on", TensorProto.FLOAT, None)]
    infos = ([helper.make_tensor_value_info(*one) for one in some] for some in (taken, given))
    body = helper.make_graph(nodes, "body", *infos)
    rounds = helper.make_tensor("rounds", TensorProto.INT64, [], [2**63 - 1])
    on = helper.make_tensor("on", TensorProto.BOOL, [], [True])
    return graph_of(
        [
            helper.make_node("Constant", [], ["m"], value=rounds),
            helper.make_node("Constant", [], ["c"], value=on),
            helper.make_node("Loop", ["m", "c", "input"], ["scores_out"], body=body),
        ]
    )


def nested_ifs(levels: int) -> bytes:
    inner = helper.make_graph([helper.make_node("Identity", ["input"], ["x"])], "inner", [], [])
    for level in range(levels):
        node = helper.make_node("If", ["c"], [f"y{level}"], then_branch=inner, else_branch=inner)
        inner = helper.make_graph([node], f"level{level}", [], [])
        if inner.ByteSize() > 1 << 24:
            break
    return graph_of([*inner.node])


def giant_constant() -> bytes:
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [1 << 20, 1 << 22])
    return graph_of(
        [
            helper.make_node("Constant", [], ["shape"], value=shape),
            helper.make_node("ConstantOfShape", ["shape"], ["giant"]),
            helper.make_node("ReduceSum", ["giant"], ["sum"], keepdims=0),
            helper.make_node("GlobalAveragePool", ["input"], ["pooled"]),
            helper.make_node("Add", ["pooled", "sum"], ["scores_out"]),
        ]
    )


def recursive_function() -> bytes:
    model = onnx.load_from_string(graph_of([helper.make_node("Again", ["input"], ["scores_out"], domain="own")]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    again = helper.make_node("Again", ["x"], ["y"], domain="own")
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", "Again", ["x"], ["y"], [again], opsets))
    return model.SerializeToString()


def external(location: str) -> bytes:
    def change(model: onnx.ModelProto) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return changed(change)


def output_of(kind: int) -> bytes:
    return changed(lambda model: setattr(model.graph.output[0].type.tensor_type, "elem_type", kind))


def flooded(model: onnx.ModelProto) -> None:
    for number in range(200_000):
        model.metadata_props.add(key=f"key{number}", value="x" * 40)


PLAIN = mean_color().SerializeToString()
HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"hello, this is no network",
    "cut": lambda: PLAIN[: len(PLAIN) // 2],
    "a nest of 100,000 messages": lambda: b"\x3a\x7f" * 100_000,
    "no graph": lambda: changed(lambda model: model.ClearField("graph")),
    "no input": lambda: changed(lambda model: model.graph.ClearField("input")),
    "no output": lambda: changed(lambda model: model.graph.ClearField("output")),
    "no opset": lambda: changed(lambda model: model.ClearField("opset_import")),
    "an opset of the future": lambda: changed(lambda model: setattr(model.opset_import[0], "version", 2**60)),
    "a cycle": lambda: graph_of(
        [helper.make_node("Add", ["input", "b"], ["a"]), helper.make_node("Add", ["a", "a"], ["b"])]
    ),
    "an unknown operation": lambda: graph_of([helper.make_node("Steal", ["input"], ["scores_out"])]),
    "an operation of another domain": lambda: graph_of(
        [helper.make_node("Steal", ["input"], ["scores_out"], domain="elsewhere")]
    ),
    "an endless loop": endless_loop,
    "nested ifs": lambda: nested_ifs(40),
    "a giant constant": giant_constant,
    "a giant initializer": lambda: changed(lambda model: model.graph.initializer[0].dims.__setitem__(0, 2**60)),
    "a negative initializer": lambda: changed(lambda model: model.graph.initializer[0].dims.__setitem__(0, -3)),
    "a function of itself": recursive_function,
    "an image without pixels": lambda: mean_color(("batch", 3, 0, 32)).SerializeToString(),
    "an output without values": lambda: changed(
        lambda model: setattr(model.graph.output[0].type.tensor_type.shape.dim[1], "dim_value", 0)
    ),
    "an output of another type": lambda: output_of(TensorProto.BFLOAT16),
    "an output of no known type": lambda: output_of(999),
    "an output that is a sequence": lambda: graph_of(
        [helper.make_node("SequenceConstruct", ["input"], ["scores_out"])],
        output=helper.make_tensor_sequence_value_info("scores_out", TensorProto.FLOAT, None),
    ),
    "an output with a comma": lambda: graph_of(
        [helper.make_node("Flatten", ["input"], ["a,b"])],
        output=helper.make_tensor_value_info("a,b", TensorProto.FLOAT, ["batch", 3072]),
    ),
    "a constant without a value": lambda: graph_of([helper.make_node("Constant", [], ["scores_out"])]),
    "a flood of metadata": lambda: changed(flooded),
    "weights outside the folder": lambda: external("../secret.bin"),
    "weights at a path of the machine": lambda: external("/etc/passwd"),
    "weights behind a link": lambda: external("link.bin"),
    "weights without an end": lambda: external("zero.bin"),
    "weights that are not there": lambda: external("absent.bin"),
}
WIDE_S, SHORT_S = 120.0, 5.0


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_network_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "networks"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(os.urandom(4 * 3 * CLASSES))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "zero.bin").symlink_to("/dev/zero")
    file = folder / "hostile.onnx"
    file.write_bytes(HOSTILE[name]())
    with pytest.raises(BadNetwork) as caught:
        prepare_file(file, DEFINITION, timeout_s=SHORT_S if name == "an endless loop" else WIDE_S)
    assert "\n" not in str(caught.value)
    assert "it did not run" in str(caught.value) or name != "an endless loop"
    assert "Traceback" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_weights_beside_the_network_are_read(tmp_path: Path) -> None:
    (tmp_path / "beside.bin").write_bytes(mean_color().graph.initializer[0].raw_data)
    (tmp_path / "network.onnx").write_bytes(external("beside.bin"))
    apart = prepare_file(tmp_path / "network.onnx", DEFINITION)
    weights = [numpy_helper.to_array(tensor) for tensor in apart.graph.initializer if tensor.name == "weights"]
    np.testing.assert_array_equal(weights, [numpy_helper.to_array(mean_color().graph.initializer[0])])


@pytest.mark.parametrize("name", ["cut", "a function of itself", "weights outside the folder"])
def test_the_command_says_one_line_and_writes_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "hostile.onnx").write_bytes(HOSTILE[name]())
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"preprocess": {"operations": OPERATIONS}}))
    repository = tmp_path / "repository"
    command = [str(tmp_path / "own.yaml"), "--onnx", str(tmp_path / "hostile.onnx"), "--repository", str(repository)]
    done = subprocess.run(
        [sys.executable, "-c", BUILD, *command], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert done.stderr.startswith("cannot build: ")
    assert "Traceback" not in done.stderr
    assert not repository.exists()


def test_damaged_networks_are_refused_or_served(tmp_path: Path) -> None:
    random = Random(5)

    def prepared(number: int) -> bool:
        data = bytearray(PLAIN)
        for _ in range(random.choice((1, 2, 8))):
            data[random.randrange(len(data))] = random.randrange(256)
        if number % 5 == 0:
            del data[random.randrange(len(data)) :]
        file = tmp_path / f"{number}.onnx"
        file.write_bytes(bytes(data))
        try:
            prepare_file(file, DEFINITION, timeout_s=WIDE_S)
        except BadNetwork:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        served = list(pool.map(prepared, range(40)))
    assert not all(served), "none of the damage was seen"
