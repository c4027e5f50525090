"""The GPU's form of both models in a real Triton, with host memory in the place of the GPU (``on_host``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from clip_files import COUNT, write_video
from colored_cells import MOST, ask_in_a_crowd, drawn, picture, places
from on_host import GRID_HOST, HOST, check_without_triton
from patience import wait_until
from shared_server import CLASSIFY, SharedServer

from onestream.client import BadImage, BadStream, Client
from onestream.postprocess.kinds.classification import top_k
from onestream.postprocess.labels import read_labels
from onestream.preprocess import compile
from onestream.serving.engine import OnnxRuntimeEngine
from onestream.serving.models.in_process import InProcess
from onestream.serving.pipeline import Pipeline

pytestmark = [
    pytest.mark.needs_triton,
    pytest.mark.slow,
    pytest.mark.serves(CLASSIFY, HOST, GRID_HOST),
]
ROOT = Path(__file__).parents[2]
SHOWN = ("cat", "coffee", "temple")


def test_results_are_those_of_the_reference(server: SharedServer, photos: dict[str, bytes]) -> None:
    """Pixels are the reference's in every bit; the network's sums depend on the size of a batch."""
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml")
    reference = compile(pipeline.preprocess.pixels(), limits=pipeline.limits)
    folder = server.repository / "classify_fused"
    network = OnnxRuntimeEngine((folder / "1" / "model.onnx").read_bytes(), threads=1)
    names = read_labels(folder / "labels.txt")
    with Client(server.grpc_url) as client:
        for photo in (photos[name] for name in SHOWN):
            (pixels,) = reference.run([photo])
            scores, class_ids = top_k(network.run({"pixels": pixels[None]})["logits"], 5)
            for form in ("host", "host_fused"):
                seen = client.classify(photo, pipeline=form)
                assert [one.label for one in seen.labels] == [names[class_id] for class_id in class_ids[0]]
                assert [one.score for one in seen.labels] == pytest.approx(scores[0].tolist(), abs=1e-5)


def test_a_process_without_triton_gives_the_same_bits(server: SharedServer, photos: dict[str, bytes]) -> None:
    asked = [(server.repository / "host_fused", [photos[name] for name in SHOWN])]
    cells = [picture(drawn(count, count)) for count in (0, 1, 5, 64)]
    with Client(server.grpc_url, timeout_s=60) as client:
        check_without_triton(client, [*asked, (server.repository / "grid_host_fused", cells)])


@pytest.mark.parametrize("count", [0, 5, MOST, 1000])
def test_a_cascade_gives_the_rows_of_the_cpu_s_form(server: SharedServer, count: int) -> None:
    colors = drawn(count, count)
    model = server.repository / "grid_host_fused"
    expected: dict[str, np.ndarray] = InProcess(model, device="cpu")([picture(colors)])[0]
    with Client(server.grpc_url, timeout_s=60) as client:
        found = client.infer("grid_host_fused", picture(colors))
    assert set(found) == set(expected)
    assert [colors[place].encode() for place in places(found["boxes"][0])] == found["labels"][0].tolist()
    for name, value in expected.items():
        if value.dtype.kind == "f":
            # The network's sums depend on the size of a batch.
            np.testing.assert_allclose(found[name], value, atol=1e-4, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


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


def test_video_is_decoded_and_brought_to_the_network_on_the_gpu(server: SharedServer, tmp_path: Path) -> None:
    """B-frames; two streams, and one that a GPU does not decode, which fails as the CPU's pixels would."""
    clip = write_video(tmp_path / "v.mp4", "libx264", options={"g": "12", "bf": "3"}, size_hw=(240, 320))
    with Client(server.grpc_url) as client, client.stream(clip, pipeline="classify") as frames:
        expected = list(frames)
    with Client(server.grpc_url) as client:
        streams = [client.stream(clip, pipeline="host") for _ in range(2)]
        for stream in streams:
            with stream as frames:
                found = list(frames)
                assert (frames.decoded, frames.concealed) == (COUNT, 0)
            assert [(one.frame_index, one.pts) for one in found] == [(one.frame_index, one.pts) for one in expected]
            for one, other in zip(found, expected, strict=True):
                assert one.result.top.score == pytest.approx(other.result.top.score, abs=0.02)
        old = write_video(tmp_path / "v.avi", "mpeg4", count=3, size_hw=(240, 320))
        with client.stream(old, pipeline="host") as frames, pytest.raises(BadStream, match="NoneType"):
            list(frames)


@pytest.mark.parametrize("form", ["host", "host_fused"])
def test_bad_images_hurt_only_themselves_under_load(
    form: str, server: SharedServer, photos: dict[str, bytes], bad_images: dict[str, tuple[bytes, str]]
) -> None:
    good = [photos[name] for name in SHOWN]
    mixed: list[tuple[bytes, str | None]] = []
    for number in range(40):
        mixed.append((good[number % len(good)], None))
        if number % 4 == 0:
            mixed.append(list(bad_images.values())[number // 4 % len(bad_images)])
    with Client(server.grpc_url, timeout_s=60) as client:
        alone = {photo: client.classify(photo, pipeline=form).top for photo in good}
        items = list(client.classify_many([image for image, _ in mixed], pipeline=form, in_flight=16))
        for (image, code), item in zip(mixed, sorted(items, key=lambda one: one.index), strict=True):
            if code is None:
                assert item.unwrap().top == alone[image]
            else:
                assert isinstance(item.error, BadImage)
                assert item.error.code == code


def test_steps_are_timed_and_bad_images_counted(server: SharedServer, bad_images: dict[str, tuple[bytes, str]]) -> None:
    with Client(server.grpc_url, timeout_s=60) as client:
        for item in client.classify_many([data for data, _code in bad_images.values()], pipeline="host_fused"):
            assert isinstance(item.error, BadImage)
        client.classify(ROOT / "examples" / "photos" / "cat.jpg", pipeline="host_fused")
    steps = [
        f'onestream_step_batches_total{{model="host_fused",step="{step}"}}'
        for step in ("decode", "resize", "network", "read")
    ]
    reasons = [
        f'onestream_bad_images_total{{model="host_fused",reason="{code}"}}' for code in ("corrupt", "too_many_pixels")
    ]
    wait_until(lambda: all(server.metric(series) > 0 for series in (*steps, *reasons)))
    assert np.isfinite(server.metric("onestream"))
