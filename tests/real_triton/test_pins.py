"""The version that was pinned is served by a server that starts anew, also after one of its models was killed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import test_cascade_rollout as cascade
import test_rollout as simple
from colored_cells import drawn, picture
from patience import PATIENCE_S, wait_until
from rollouts import rollout
from small_models import running

from onestream.client import Client
from onestream.serving.built.versions import Pin, read_pins, write_pin
from onestream.serving.server.triton.model_processes import find_model_processes

pytestmark = [pytest.mark.needs_triton, pytest.mark.slow]


def test_the_pin_outlives_the_server(tmp_path: Path) -> None:
    """A name that is asked for brings the networks of its version, and no others."""
    for version, factor in ((1, 1.0), (2, 3.0)):
        repository = simple.build_version(tmp_path, version, factor=factor)
        cascade.build_version(tmp_path, version)
    for pipeline in ("own", "grid"):
        write_pin(repository, pipeline, Pin(version=2, previous=1))
    with (
        running(repository, device="cpu", models=["own", "own_fused", "grid"]) as server,
        Client(server.grpc_url, timeout_s=60) as client,
    ):
        assert "own_preprocess" not in server.models
        assert cascade.version_of(client.infer("grid", picture(drawn(20, 4)))) == 2
        served = {process.model for process in find_model_processes(server.pid).running}
        assert {name for name in served if name.endswith(cascade.NETWORKS)} == {
            f"grid_v2_{network}" for network in cascade.NETWORKS
        }
        pinned = simple.scores(client, "own")
        np.testing.assert_array_equal(simple.scores(client, "own_fused"), pinned)
        victim = next(p for p in find_model_processes(server.pid).running if p.model == "own_v2_fused")
        victim.kill()
        wait_until(lambda: server.restarts.get("own_v2_fused"))
        client.wait_until_ready(timeout_s=PATIENCE_S)
        np.testing.assert_array_equal(simple.scores(client, "own_fused"), pinned)
        result = rollout(server, "own", "--back", photos=[simple.PHOTO])
        assert result.exit_code == 0, result.output
        # The network of version 2 is that of version 1 times 3.
        np.testing.assert_allclose(simple.scores(client, "own") * 3, pinned, rtol=1e-5)
    # Of what a start makes of this, ``test_versions`` tells.
    assert read_pins(repository)["own"].version == 1
