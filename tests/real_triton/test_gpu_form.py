"""The GPU's form of both models in a real Triton, with host memory in the place of the GPU.

What is real: requests, batches, response senders, threads, isolation, metrics, and the code that a GPU would run;
what is not: the vendor's kernels (``host_gpu``). ``tests/gpu`` runs the same pipelines on a GPU.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from clip_files import COUNT, write_video
from google.protobuf import text_format
from patience import wait_until
from tritonclient.grpc.model_config_pb2 import ModelConfig

from onestream.client import BadImage, BadStream, Client
from onestream.postprocess import read_labels, top_k
from onestream.postprocess.postprocessing import open_postprocess
from onestream.preprocess import compile
from onestream.preprocess.headers.reader import read_header
from onestream.serving.building.build import build
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.server import Server

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
_MODEL = """
import sys
sys.path[:0] = [{tests!r}]
import host_gpu
host_gpu.install()
from {module} import {adapter}


class TritonPythonModel({adapter}):
    def initialize(self, args):
        super().initialize(args | {{"model_instance_kind": "GPU"}})
"""


_VIDEO = """
import sys
sys.path[:0] = [{tests!r}]
import host_gpu
import host_nvdec
host_nvdec.install()
host_gpu.install()
from onestream.preprocess.video.common.picture import PictureMaker
from onestream.serving.video.model import Video

# Pixels that the CPU would make.
PictureMaker.pixels = None


class TritonPythonModel(Video):
    def initialize(self, args):
        super().initialize(args | {{"model_instance_kind": "GPU"}})
"""


_WITHOUT_TRITON = """
import pickle
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
import host_gpu
host_gpu.install()
from onestream.serving.models.in_process import InProcess

model = InProcess(Path(sys.argv[1]), device="gpu")
answers = [model([picture])[0] for picture in pickle.load(sys.stdin.buffer)]
sys.stdout.buffer.write(pickle.dumps(answers))
"""


def check_without_triton(client: Client, model: Path, pictures: Sequence[bytes]) -> None:
    """A process without Triton, on the same host memory, answers pictures as the server does, in every bit."""
    script = _WITHOUT_TRITON.format(tests=str(ROOT / "tests"))
    command = [sys.executable, "-c", script, str(model)]
    run = subprocess.run(command, input=pickle.dumps(list(pictures)), capture_output=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr.decode()[-3000:]
    answers: list[dict[str, Any]] = pickle.loads(run.stdout)
    for picture, found in zip(pictures, answers, strict=True):
        expected = client.infer(model.name, picture)
        assert set(found) == set(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def use_gpu_form(model: Path, adapter: str, *, module: str = "onestream.serving.models.image") -> None:
    """Let a model of the repository that is read on a CPU be the GPU's form, in host memory."""
    gpu = text_format.Parse((model / "config.pbtxt").read_text(), ModelConfig())
    cpu = text_format.Parse((model / "configs" / "cpu.pbtxt").read_text(), ModelConfig())
    # The GPU's configuration, on the kind of instance that this machine has.
    gpu.ClearField("instance_group")
    gpu.instance_group.extend(cpu.instance_group)
    (model / "configs" / "cpu.pbtxt").write_text(text_format.MessageToString(gpu))
    template = _VIDEO if adapter == "Video" else _MODEL
    script = template.format(tests=str(ROOT / "tests"), adapter=adapter, module=module)
    (model / "1" / "model.py").write_text(script)


@pytest.fixture(scope="module")
def on_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose preprocess and fused models believe to be on a GPU."""
    folder = tmp_path_factory.mktemp("gpu-form")
    repository = folder / "repository"
    for name, file, roles in (
        ("host", "classify.yaml", ("preprocess", "fused", "video")),
        ("objects", "detect.yaml", ("preprocess", "fused")),
    ):
        own = yaml.safe_load((ROOT / "pipelines" / file).read_text())
        own["serving"] = {"cpu_instances": 1, "gpu": {"max_batch_size": 4, "batches_in_flight": 2}}
        if "video" not in roles:
            del own["video"]
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(own))
        build(folder / f"{name}.yaml", folder=repository)
        for role in roles:
            use_gpu_form(repository / f"{name}_{role}", role.capitalize())
    with pytest.MonkeyPatch.context() as patch:
        # NumPy's BLAS spins where several threads call it on few cores.
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        server = Server(repository, http_port=0, grpc_port=0, metrics_port=0, device="cpu")
        with server:
            yield server


def test_results_are_those_of_the_reference(on_host: Server, repository: Path, photos: dict[str, bytes]) -> None:
    """Pixels are the reference's in every bit; the network's sums depend on the size of a batch."""
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    reference = compile(pipeline.preprocess.pixels(), limits=pipeline.limits)
    folder = repository / "classify_fused"
    network = OnnxRuntimeEngine((folder / "1" / "model.onnx").read_bytes(), threads=1)
    names = read_labels(folder / "labels.txt")
    with Client(on_host.grpc_url) as client:
        for photo in photos.values():
            (pixels,) = reference.run([photo])
            scores, class_ids = top_k(network.run(pixels[None])["logits"], 5)
            for form in ("host", "host_fused"):
                seen = client.classify(photo, pipeline=form)
                assert [one.label for one in seen.labels] == [names[class_id] for class_id in class_ids[0]]
                assert [one.score for one in seen.labels] == pytest.approx(scores[0].tolist(), abs=1e-5)


def test_objects_are_those_of_the_reference(on_host: Server, photos: dict[str, bytes]) -> None:
    """The candidates leave the GPU with the one read of a batch; suppression and the way back are the host's."""
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "detect.yaml")
    reference = compile(pipeline.preprocess.pixels(), limits=pipeline.limits)
    network = OnnxRuntimeEngine(on_host.repository / "objects_fused" / "1" / "model.onnx", threads=1)
    find = open_postprocess(pipeline.postprocess, pipeline.preprocess)
    with Client(on_host.grpc_url) as client:
        for photo in photos.values():
            (pixels,) = reference.run([photo])
            (expected,) = find(network.run(pixels[None]), [read_header(photo).oriented_hw])
            for form in ("objects", "objects_fused"):
                found = client.detect(photo, pipeline=form)
                assert found.class_ids.tolist() == expected["class_ids"][0].tolist()
                # The network's sums depend on the size of a batch.
                np.testing.assert_allclose(found.boxes, expected["boxes"][0], atol=0.01)
                np.testing.assert_allclose(found.scores, expected["scores"][0], atol=1e-4)
        empty = client.detect(np.full((60, 80, 3), 127, np.uint8), pipeline="objects_fused")
        assert len(empty) == 0


@pytest.mark.parametrize("form", ["host_fused", "objects_fused"])
def test_a_process_without_triton_gives_the_same_bits(on_host: Server, photos: dict[str, bytes], form: str) -> None:
    with Client(on_host.grpc_url) as client:
        check_without_triton(client, on_host.repository / form, list(photos.values()))


def test_video_is_decoded_and_brought_to_the_network_on_the_gpu(
    on_host: Server, server: Server, tmp_path: Path
) -> None:
    """B-frames; three streams at once, and one that a GPU does not decode, which fails as the CPU's pixels would."""
    clip = write_video(tmp_path / "v.mp4", "libx264", options={"g": "12", "bf": "3"}, size_hw=(240, 320))
    with Client(server.grpc_url) as client, client.stream(clip, pipeline="classify") as frames:
        expected = list(frames)
    with Client(on_host.grpc_url) as client:
        streams = [client.stream(clip, pipeline="host") for _ in range(3)]
        for stream in streams:
            with stream as frames:
                found = list(frames)
                assert (frames.decoded, frames.concealed) == (COUNT, 0)
            assert [(one.frame_index, one.pts) for one in found] == [(one.frame_index, one.pts) for one in expected]
            for one, other in zip(found, expected, strict=True):
                assert one.labels[0].score == pytest.approx(other.labels[0].score, abs=0.02)
        old = write_video(tmp_path / "v.avi", "mpeg4", count=3, size_hw=(240, 320))
        with client.stream(old, pipeline="host") as frames, pytest.raises(BadStream, match="NoneType"):
            list(frames)


@pytest.mark.parametrize("form", ["host", "host_fused"])
def test_bad_images_hurt_only_themselves_under_load(
    form: str, on_host: Server, photos: dict[str, bytes], bad_images: dict[str, tuple[bytes, str]]
) -> None:
    good = list(photos.values())
    mixed: list[tuple[bytes, str | None]] = []
    for number in range(120):
        mixed.append((good[number % len(good)], None))
        if number % 4 == 0:
            mixed.append(list(bad_images.values())[number // 4 % len(bad_images)])
    with Client(on_host.grpc_url, timeout_s=60) as client:
        alone = {photo: client.classify(photo, pipeline=form).top for photo in good}
        items = list(client.classify_many([image for image, _ in mixed], pipeline=form, in_flight=24))
        for (image, code), item in zip(mixed, sorted(items, key=lambda one: one.index), strict=True):
            if code is None:
                assert item.unwrap().top == alone[image]
            else:
                assert isinstance(item.error, BadImage)
                assert item.error.code == code


def test_steps_are_timed_and_bad_images_counted(on_host: Server) -> None:
    def metrics() -> str:
        return str(urllib.request.urlopen(on_host.metrics_url).read().decode())

    wait_until(lambda: 'model="host_fused",reason="too_many_pixels"' in metrics())
    values = {
        line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
        for line in metrics().splitlines()
        if line.startswith("onestream")
    }
    for step in ("decode", "resize", "network", "read"):
        assert values[f'onestream_step_batches_total{{model="host_fused",step="{step}"}}'] > 0
    assert values['onestream_bad_images_total{model="host_fused",reason="corrupt"}'] > 0
    assert np.isfinite(list(values.values())).all()
