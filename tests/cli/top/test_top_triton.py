"""`onestream top` beside a real server: its numbers are those of the requests that were sent."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from metrics_pages import showing
from patience import PATIENCE_S, wait_until
from shared_server import Served, SharedServer

from onestream.client import Client

ROOT = Path(__file__).parents[3]


def write_watched(folder: Path) -> None:
    """The pipeline *classify* by a name of its own, so that nobody else's requests are counted with these."""
    shutil.copy(ROOT / "pipelines" / "classify.yaml", folder / "watched.yaml")


pytestmark = [pytest.mark.needs_triton, pytest.mark.slow, pytest.mark.serves(Served("watched", write_watched))]
GOOD, BAD = 7, {"corrupt": 2, "unsupported_format": 3}


def metrics(server: SharedServer) -> str:
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        return answer.read().decode()


def test_the_numbers_are_what_was_sent(server: SharedServer) -> None:
    coffee = (ROOT / "examples" / "photos" / "coffee.jpg").read_bytes()
    sent = [coffee] * GOOD + [coffee[:3000]] * BAD["corrupt"] + [b"not an image"] * BAD["unsupported_format"]
    # Between the command and the server, so that its two readings fall before and after the requests.
    with showing(metrics(server)) as between:
        between.at_once = 1
        command = ["top", "--once", "--json", f"--metrics-url={between.url}", "--interval-s=0.5"]
        started_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "onestream", *command], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        wait_until(lambda: between.asked)
        with Client(server.grpc_address) as client:
            for pipeline in ("watched", "watched_fused"):
                answers = list(client.classify_many(sent, pipeline=pipeline, in_flight=4))
                assert sum(item.error is None for item in answers) == GOOD
        began_s = time.monotonic()
        # Models hand over their counters once a second.
        time.sleep(3)
        between.text = metrics(server)
        passed_s = time.monotonic() - began_s
        between.go_on.set()
        out, _ = process.communicate(timeout=PATIENCE_S)
    whole_s = time.monotonic() - started_s
    assert process.returncode == 0
    found = json.loads(out)
    models = {model["name"]: model for model in found["models"]}
    everything = GOOD + sum(BAD.values())
    ensemble, fused = models["watched"], models["watched_fused"]
    assert ensemble["inferences"] == GOOD
    assert ensemble["failures"] == {"OTHER": sum(BAD.values())}
    assert ensemble["bad_images"] == fused["bad_images"] == BAD
    # To Triton, an error that a Python model answers with is a success.
    assert fused["inferences"] == models["watched_preprocess"]["inferences"] == everything
    assert fused["failures"] == {}
    assert 1 <= fused["batch_size"] <= 4
    assert fused["latency_ms"] >= fused["queue_ms"] >= 0
    assert [step["name"] for step in fused["steps"]] == ["preprocess", "network", "postprocess"]
    assert sum(step["share"] for step in fused["steps"]) == pytest.approx(1)
    (preprocess,) = models["watched_preprocess"]["steps"]
    # Batches hold up to 4.
    assert everything / 4 <= preprocess["batches"] <= everything
    assert models["watched_postprocess"]["pending"] == 0
    assert 0 < found["memory_used_bytes"] < found["memory_total_bytes"]
    assert passed_s <= found["seconds"] <= whole_s, "its readings are before the requests and after the counters"
