"""The GPU suite: everything here needs a GPU. What it measures is printed as one table and saved."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import cuda_waits
import gpu_engines
import numpy as np
import pytest
from gpu_files import encoded
from PIL import Image

from onestream.preprocess import Definition, compile
from onestream.preprocess.cuda.device import Device, open_device

ROOT = Path(__file__).parents[2]
RESULTS = "ONESTREAM_GPU_RESULTS"
"""Environment variable: folder for the measured figures; benchmarks/results by default."""
POINTS = "ONESTREAM_GPU_POINTS"
"""Environment variable: a file to which each figure and outcome is appended as a line when it is there."""

_PACKAGES = (
    "nvidia-dali",
    "nvidia-nvimgcodec",
    "nvidia-nvjpeg",
    "cvcuda",
    "tensorrt",
    "cuda-",
    "onnxruntime",
    "numpy",
)
_figures: list[dict[str, Any]] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.needs_gpu)


@pytest.fixture(scope="session")
def device() -> Device:
    """The first GPU."""
    return open_device()


@pytest.fixture(scope="session")
def definition() -> Definition:
    """The one of the default pipeline."""
    import yaml

    pipeline = yaml.safe_load((ROOT / "pipelines" / "classify.yaml").read_text())
    return Definition.model_validate(pipeline["preprocess"])


@pytest.fixture(scope="session")
def photos() -> dict[str, Image.Image]:
    """Real photos, RGB."""
    return {path.stem: Image.open(path).convert("RGB") for path in sorted((ROOT / "examples" / "photos").glob("*.jpg"))}


@pytest.fixture(scope="session")
def files(photos: dict[str, Image.Image]) -> dict[str, bytes]:
    """JPEGs of every kind that a GPU decodes, by name, and one of each other format."""
    found = {}
    for name, photo in photos.items():
        large = photo.resize((1920, 1080), Image.Resampling.LANCZOS)
        odd = photo.resize((501, 377), Image.Resampling.LANCZOS).rotate(90, expand=True)
        found[f"{name}, 1080p 4:2:0"] = encoded(large, "JPEG", quality=90)
        found[f"{name}, 1080p 4:4:4"] = encoded(large, "JPEG", quality=95, subsampling=0)
        found[f"{name}, odd 4:2:2"] = encoded(odd, "JPEG", quality=90, subsampling=1)
        found[f"{name}, odd progressive"] = encoded(odd, "JPEG", quality=85, progressive=True)
        found[f"{name}, gray"] = encoded(odd.convert("L"), "JPEG", quality=90)
    exif = Image.Exif()
    exif[0x0112] = 6
    found["EXIF 6"] = encoded(photos["coffee"], "JPEG", quality=90, exif=exif)
    for kind in ("PNG", "WEBP", "BMP", "TIFF"):
        found[kind] = encoded(photos["cat"], kind, **({"lossless": True} if kind == "WEBP" else {}))
    return found


@pytest.fixture(scope="session")
def network() -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Logits of one image's pixels, uint8 (height, width, channels), by ONNX Runtime on the CPU."""
    from gpu_network import served_network

    from onestream.serving.engine import OnnxRuntimeEngine

    engine = OnnxRuntimeEngine(served_network(), threads=0)
    return lambda pixels: engine.run({"pixels": pixels[None]})["logits"][0]


@pytest.fixture(scope="session")
def decided(files: dict[str, bytes], definition: Definition, network: Any) -> list[str]:
    """The names of files whose class the network keeps when every sample changes by up to two levels.

    Of the others its best two are so close that the roundings of any decoder choose.
    """
    chosen = np.random.default_rng(0)

    def keeps(pixels: Any) -> bool:
        noisy = [np.clip(pixels + chosen.integers(-2, 3, pixels.shape), 0, 255).astype(np.uint8) for _ in range(5)]
        return len({int(network(one).argmax()) for one in (pixels, *noisy)}) == 1

    samples = compile(definition.pixels()).run([*files.values()])
    found = [name for name, pixels in zip(files, samples, strict=True) if keeps(pixels)]
    assert len(found) > len(files) / 4
    return found


@pytest.fixture(scope="session")
def record() -> Callable[..., None]:
    """A function (what, value, allowed) that notes a measured figure for the table."""

    def note(what: str, value: float | str, allowed: str = "") -> None:
        shown = value if isinstance(value, str) else float(np.round(value, 5))
        _figures.append({"what": what, "value": shown, "allowed": allowed})
        _keep({"part": "suite", **_figures[-1]})

    return note


def _keep(point: dict[str, Any]) -> None:
    """Write it at once: a test after it may end the process."""
    if POINTS in os.environ:
        with open(os.environ[POINTS], "a") as file:
            file.write(json.dumps(point) + "\n")


def pytest_runtest_logreport(report: Any) -> None:
    """Keep what became of a test, too."""
    if _is_ours(report) and (report.when == "call" or report.outcome != "passed"):
        _keep({"part": "suite", "test": report.nodeid, "outcome": report.outcome})


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CUPTI's tracer, which knows our waits and those of the decoder."""
    pytest.importorskip("cupti", reason="cupti-python is not installed")
    from onestream.preprocess.backends import nvimgcodec
    from onestream.preprocess.cuda.device import Event, Stream

    found = cuda_waits.tracer()
    done: Any = Event.done
    monkeypatch.setattr(Event, "done", property(found.named(cuda_waits.QUERY, done.fget)))
    monkeypatch.setattr(Stream, "sync", found.named(cuda_waits.OURS, Stream.sync))
    found.watch(monkeypatch, {"nvimgcodec": nvimgcodec.nvimgcodec})
    return found


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was measured, and save it with the outcomes beside the other results of this machine."""
    outcomes = {
        kind: sorted({report.nodeid for report in terminalreporter.getreports(kind) if _is_ours(report)})
        for kind in ("passed", "failed", "error", "skipped")
    }
    if not any(outcomes.values()):
        return
    machine = open_device().name
    terminalreporter.write_sep("-", f"GPU suite on {machine}")
    for figure in _figures:
        terminalreporter.write_line("  ".join(map(str, figure.values())).rstrip())
    folder = Path(os.environ.get(RESULTS) or ROOT / "benchmarks" / "results") / slug(machine)
    folder.mkdir(parents=True, exist_ok=True)
    versions = {
        dist.metadata["Name"]: dist.version
        for dist in metadata.distributions()
        if (dist.metadata["Name"] or "").lower().startswith(_PACKAGES)
    }
    result = {
        "machine": machine,
        "python": platform.python_version(),
        "versions": versions,
        "engines": gpu_engines.summary(),
        "outcomes": outcomes,
        "figures": _figures,
    }
    path = folder / "gpu-suite.json"
    path.write_text(json.dumps(result, indent=2, sort_keys=True) + "\n")
    terminalreporter.write_line(f"saved to {path}")


def _is_ours(report: Any) -> bool:
    return str(getattr(report, "nodeid", "")).startswith("tests/gpu/")


def slug(name: str) -> str:
    """A name as a folder: lower case, words joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
