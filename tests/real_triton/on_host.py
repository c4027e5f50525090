"""The GPU's form of pipelines in a real Triton, with host memory in the place of the GPU.

What is real: requests, batches, response senders, threads, isolation, metrics, and the code that a GPU would run;
what is not: the vendor's kernels (``host_gpu``). ``tests/gpu`` runs the same pipelines on a GPU.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import colored_cells
import prompted
import siamese
from builds import build
from google.protobuf import text_format
from shared_server import Served, built_in
from tritonclient.grpc.model_config_pb2 import ModelConfig

ROOT = Path(__file__).parents[2]
GPU = {"max_batch_size": 4, "batches_in_flight": 2}
_MODEL = """
import sys
sys.path[:0] = [{tests!r}]
import host_gpu
{install_more}
host_gpu.install()
from {module} import {adapter}
{change}


class TritonPythonModel({adapter}):
    def initialize(self, args):
        super().initialize(args | {{"model_instance_kind": "GPU"}})
"""
_INSTALL_NVDEC = "import host_nvdec; host_nvdec.install()"
_ON_GPU_ALONE = """
from onestream.postprocess.matte.composer import Composer
from onestream.preprocess.video.common.picture import PictureMaker

# Pixels that the CPU would make, and what it would compose.
PictureMaker.pixels = None
Composer.compose = None
"""


def use_gpu_form(model: Path, adapter: str, *, module: str = "onestream.serving.models.image") -> None:
    """Let a model of the repository that is read on a CPU be the GPU's form, in host memory."""
    gpu = text_format.Parse((model / "config.pbtxt").read_text(), ModelConfig())
    cpu = text_format.Parse((model / "configs" / "cpu.pbtxt").read_text(), ModelConfig())
    # The GPU's configuration, on the kind of instance that this machine has.
    gpu.ClearField("instance_group")
    gpu.instance_group.extend(cpu.instance_group)
    (model / "configs" / "cpu.pbtxt").write_text(text_format.MessageToString(gpu))
    install_more = change = ""
    if adapter == "Video":
        install_more, change, module = _INSTALL_NVDEC, _ON_GPU_ALONE, "onestream.serving.video.model"
    script = _MODEL.format(
        tests=str(ROOT / "tests"), install_more=install_more, change=change, adapter=adapter, module=module
    )
    (model / "1" / "model.py").write_text(script)


def on_host(name: str, of: str, on_gpu: dict[str, str], *, others: Sequence[str] = (), **fields: Any) -> Served:
    """Models of a pipeline of the project, ready to serve: those ``on_gpu``, with their adapters, and ``others``."""

    def write(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as there:
            built_in(name, of=of, serving={"cpu_instances": 1, "gpu": GPU}, **fields).write(Path(there))
            built = build(Path(there) / f"{name}.yaml", folder=Path(there) / "repository")
            take(built.folder, folder, [*on_gpu, *others])
        for model, adapter in on_gpu.items():
            use_gpu_form(folder / model, adapter)

    return Served(name, write)


def write_grid(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as there:
        gpu = GPU | {"engine": "onnxruntime"}
        serving = {"max_batch_size": 4, "cpu_instances": 1, "gpu": gpu}
        networks = colored_cells.write(Path(there), name="grid_host", serving=serving)
        built = build(Path(there) / "grid_host.yaml", folder=Path(there) / "repository", onnx_files=networks)
        take(built.folder, folder, ["grid_host_fused"])
    use_gpu_form(folder / "grid_host_fused", "CascadeFused", module="onestream.serving.models.cascade")


def write_own(name: str, write: Callable[..., Path], folder: Path, **fields: Any) -> None:
    """Both forms of a pipeline that ``write`` writes with its network."""
    with tempfile.TemporaryDirectory() as there:
        serving = {"max_batch_size": 4, "cpu_instances": 1, "gpu": GPU}
        network = write(Path(there), name=name, serving=serving, **fields)
        built = build(Path(there) / f"{name}.yaml", folder=Path(there) / "repository", onnx_file=network)
        roles = ("", "_preprocess", "_model", "_postprocess", "_fused")
        take(built.folder, folder, [f"{name}{role}" for role in roles])
    use_gpu_form(folder / f"{name}_preprocess", "Preprocess")
    use_gpu_form(folder / f"{name}_fused", "Fused")


def write_prompted(folder: Path) -> None:
    """Of a network with many inputs, each of one size."""
    write_own("prompted_host", prompted.write, folder, count=2)


def write_siamese(folder: Path) -> None:
    """Of a network of two pictures."""
    write_own("siamese_host", siamese.write, folder)


def take(repository: Path, folder: Path, models: Sequence[str]) -> None:
    for model in models:
        shutil.copytree(repository / model, folder / model, symlinks=False)


HOST = on_host(
    "host",
    "classify",
    {"host_preprocess": "Preprocess", "host_fused": "Fused", "host_video": "Video"},
    others=("host", "host_model", "host_postprocess"),
)
GRID_HOST = Served("grid_host", write_grid)
PROMPTED_HOST = Served("prompted_host", write_prompted)
SIAMESE_HOST = Served("siamese_host", write_siamese)
