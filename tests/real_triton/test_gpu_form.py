"""The GPU's form of both models in a real Triton, with host memory in the place of the GPU (``on_host``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from clip_files import COUNT, write_video
from colored_cells import ask_in_a_crowd
from on_host import GRID_HOST, HOST
from patience import wait_until
from shared_server import CLASSIFY, SharedServer

from onestream.client import BadImage, BadStream, Client
from onestream.postprocess.kinds.classification import top_k
from onestream.postprocess.labels import read_labels
from onestream.preprocess import compile
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.pipeline import Pipeline

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow, pytest.mark.serves(CLASSIFY, HOST, GRID_HOST)]
ROOT = Path(__file__).parents[2]
SHOWN = ("cat", "coffee", "temple")


def test_results_are_those_of_the_reference(
    server: SharedServer, grpc_client: Client, photos: dict[str, bytes]
) -> None:
    """Pixels are the reference's in every bit; the network's sums depend on the size of a batch."""
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    reference = compile(pipeline.preprocess.pixels(), limits=pipeline.limits)
    folder = server.repository / "classify_fused"
    network = OnnxRuntimeEngine((folder / "1" / "model.onnx").read_bytes(), threads=1)
    names = read_labels(folder / "labels.txt")
    for photo in (photos[name] for name in SHOWN):
        (pixels,) = reference.run([photo])
        scores, class_ids = top_k(network.run({"pixels": pixels[None]})["logits"], 5)
        for form in ("host", "host_fused"):
            seen = grpc_client.classify(photo, pipeline=form)
            assert [one.label for one in seen.labels] == [names[class_id] for class_id in class_ids[0]]
            assert [one.score for one in seen.labels] == pytest.approx(scores[0].tolist(), abs=1e-5)


def test_callers_of_a_cascade_get_their_own_rows_and_bad_pictures_hurt_nobody(server: SharedServer) -> None:
    ask_in_a_crowd(server.grpc_url, ("grid_host_fused",))
    steps = ("decode", *(f"{stage}_{part}" for stage in ("find", "name") for part in ("preprocess", "network", "read")))
    expected = [
        'onestream_regions_total{model="grid_host_fused",stage="name"}',
        *(
            f'onestream_step_batches_total{{model="grid_host_fused",step="{step}"}}'
            for step in (*steps, "find_postprocess", "name_postprocess")
        ),
    ]
    wait_until(lambda: all(server.metric(series) > 0 for series in expected), expected)


def test_video_is_decoded_and_brought_to_the_network_on_the_gpu(grpc_client: Client, tmp_path: Path) -> None:
    """B-frames; two streams, and one that a GPU does not decode, which fails as the CPU's pixels would."""
    clip = write_video(tmp_path / "v.mp4", "libx264", options={"g": "12", "bf": "3"}, size_hw=(240, 320))
    with grpc_client.stream(clip, pipeline="classify") as frames:
        expected = list(frames)
    streams = [grpc_client.stream(clip, pipeline="host") for _ in range(2)]
    for stream in streams:
        with stream as frames:
            found = list(frames)
            assert (frames.decoded, frames.concealed) == (COUNT, 0)
        assert [(one.frame_index, one.pts) for one in found] == [(one.frame_index, one.pts) for one in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.result.top.score == pytest.approx(other.result.top.score, abs=0.02)
    old = write_video(tmp_path / "v.avi", "mpeg4", count=3, size_hw=(240, 320))
    with grpc_client.stream(old, pipeline="host") as frames, pytest.raises(BadStream, match="NoneType"):
        list(frames)


def test_steps_are_timed_and_bad_images_counted(
    server: SharedServer, grpc_client: Client, bad_images: dict[str, tuple[bytes, str]]
) -> None:
    for item in grpc_client.classify_many([data for data, _code in bad_images.values()], pipeline="host_fused"):
        assert isinstance(item.error, BadImage)
    grpc_client.classify(ROOT / "examples" / "photos" / "cat.jpg", pipeline="host_fused")
    steps = [
        f'onestream_step_batches_total{{model="host_fused",step="{step}"}}'
        for step in ("decode", "resize", "network", "read")
    ]
    reasons = [
        f'onestream_bad_images_total{{model="host_fused",reason="{code}"}}' for code in ("corrupt", "too_many_pixels")
    ]
    wait_until(lambda: all(server.metric(series) > 0 for series in (*steps, *reasons)))
    assert np.isfinite(server.metric("onestream"))
