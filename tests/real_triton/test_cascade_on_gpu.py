"""The GPU's form of a cascade in a real Triton, with host memory in the place of the GPU (as ``test_gpu_form``)."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import detectors
import numpy as np
import pytest
import yaml
from colored_cells import CELLS, MOST, ask_in_a_crowd, drawn, fields, picture, places
from networks import strongest_channel
from patience import wait_until
from test_gpu_form import check_without_triton, use_gpu_form

from onestream.client import Client
from onestream.serving.building.build import build
from onestream.serving.server.server import Server

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]


@pytest.fixture(scope="module")
def on_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose fused cascade believes to be on a GPU; the other form is on the CPU."""
    folder = tmp_path_factory.mktemp("gpu-cascade")
    gpu = {"engine": "onnxruntime", "max_batch_size": 4, "batches_in_flight": 2}
    described = fields() | {"serving": {"max_batch_size": 4, "cpu_instances": 1, "gpu": gpu}}
    (folder / "things.yaml").write_text(yaml.safe_dump(described, sort_keys=False))
    networks = {name: folder / f"{name}.onnx" for name in ("find", "name")}
    detectors.level_detector(networks["find"], cells=CELLS)
    strongest_channel(networks["name"])
    build(folder / "things.yaml", folder=folder / "repository", onnx_files=networks)
    use_gpu_form(folder / "repository" / "things_fused", "CascadeFused", module="onestream.serving.models.cascade")
    with pytest.MonkeyPatch.context() as patch:
        # NumPy's BLAS spins where several threads call it on few cores.
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        with Server(folder / "repository", http_port=0, grpc_port=0, metrics_port=0, device="cpu") as server:
            yield server


@pytest.mark.parametrize("count", [0, 1, 5, 64, MOST, 1000])
def test_both_forms_give_the_same_rows(on_host: Server, count: int) -> None:
    colors = drawn(count, count)
    with Client(on_host.grpc_url, timeout_s=60) as client:
        found, expected = (client.infer(form, picture(colors)) for form in ("things_fused", "things"))
    assert set(found) == set(expected)
    assert [colors[place].encode() for place in places(found["boxes"][0])] == found["labels"][0].tolist()
    for name, value in expected.items():
        if value.dtype.kind == "f":
            # The network's sums depend on the size of a batch, and the CPU's resize is a level off.
            np.testing.assert_allclose(found[name], value, atol=0.02, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_process_without_triton_gives_the_same_bits(on_host: Server) -> None:
    with Client(on_host.grpc_url, timeout_s=60) as client:
        pictures = [picture(drawn(count, count)) for count in (0, 1, 5, 64)]
        check_without_triton(client, on_host.repository / "things_fused", pictures)


def test_callers_get_their_own_rows_and_bad_pictures_hurt_nobody(on_host: Server) -> None:
    ask_in_a_crowd(on_host.grpc_url, ("things_fused",))


def test_each_stage_has_its_time_and_its_regions(on_host: Server) -> None:
    def metrics() -> str:
        return str(urllib.request.urlopen(on_host.metrics_url, timeout=10).read().decode())

    with Client(on_host.grpc_url, timeout_s=60) as client:
        client.infer("things_fused", picture(drawn(9, 1)))
    wait_until(lambda: 'onestream_regions_total{model="things_fused",stage="name"}' in metrics())
    steps = ("decode", *(f"{stage}_{part}" for stage in ("find", "name") for part in ("preprocess", "network", "read")))
    for step in (*steps, "find_postprocess", "name_postprocess"):
        assert f'onestream_step_batches_total{{model="things_fused",step="{step}"}}' in metrics()
