"""A real Prometheus with the project's configuration, and what it answers to the dashboard, the alerts and the page."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import blocks
from patience import wait_until
from test_monitoring import ALERTS, DEPLOY, DETECTOR_METRICS, EXPRESSIONS, GPU_METRICS, parse, selectors

from onestream.client import BadImage, Client
from onestream.serving.server.server import Server
from onestream.serving.server.triton.ports import free_port

pytestmark = [pytest.mark.needs_prometheus, pytest.mark.slow]

ROOT = DEPLOY.parent
CONFIG = DEPLOY / "prometheus" / "prometheus.yml"
PIPELINES = ("classify", "classify_fused")
STEPS_OF_EACH = ("preprocess", "network", "postprocess")
STEPS = {
    *zip(("classify_preprocess", "classify_model", "classify_postprocess"), STEPS_OF_EACH, strict=True),
    *(("classify_fused", step) for step in STEPS_OF_EACH),
}


class Prometheus:
    def __init__(self, url: str, targets: list[str]) -> None:
        self.url, self.targets = url, targets

    def get(self, path: str, **parameters: str) -> Any:
        """What its HTTP API answers; a query that it refuses fails with its reason."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """The labels and the value of every series of an expression, now."""
        found = self.get("query", query=expression)
        return [(one["metric"], float(one["value"][1])) for one in found["result"]]

    def wait_for_scrapes(self, number: int) -> None:
        """Wait until this many readings of the server that are not older than this call are stored."""
        began = time.time()

        def are_stored() -> bool:
            times = self.get("query", query=f'up{{instance="{self.targets[0]}"}}[30s]')["result"]
            return bool(times) and sum(at > began and up == "1" for at, up in times[0]["values"]) >= number

        wait_until(are_stored, "scrapes")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    """A server of its own, since all that it counts is expected here."""
    with Server(repository, http_port=0, grpc_port=0, metrics_port=0, stop_timeout_s=1) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Reads the server every second, and a second one that is not there."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    targets = [urllib.parse.urlsplit(server.metrics_url).netloc, f"127.0.0.1:{free_port('127.0.0.1')}"]
    config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = targets
    (folder / CONFIG.name).write_text(yaml.safe_dump(config), encoding="utf-8")
    for name in config["rule_files"]:
        (folder / name).write_text((CONFIG.parent / name).read_text(encoding="utf-8"), encoding="utf-8")
    listen = f"127.0.0.1:{free_port('127.0.0.1')}"
    log = folder / "log"
    command = ["prometheus", f"--config.file={folder / CONFIG.name}", f"--storage.tsdb.path={folder / 'data'}"]
    with log.open("wb") as file:
        process = subprocess.Popen([*command, f"--web.listen-address={listen}"], stdout=file, stderr=file)
    try:

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            with suppress(OSError), urllib.request.urlopen(f"http://{listen}/-/ready", timeout=5):
                return True
            return False

        wait_until(is_ready, log)
        yield Prometheus(f"http://{listen}", targets)
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def refused(server: Server, prometheus: Prometheus) -> Counter[tuple[str, str]]:
    """Good and bad images through both forms, twice, each time read by Prometheus; all refusals by model and reason."""
    coffee = (ROOT / "examples" / "photos" / "coffee.jpg").read_bytes()
    images = [coffee] * 4 + [coffee[:3000]] * 2 + [b"not an image"]
    prometheus.wait_for_scrapes(1)
    found = bad_images(prometheus)
    before = sum(found.values())
    for _ in range(2):
        with Client(server.grpc_address) as client:
            for pipeline in PIPELINES:
                for item in client.classify_many(images, pipeline=pipeline):
                    if isinstance(item.error, BadImage):
                        found["classify_preprocess" if pipeline == "classify" else pipeline, item.error.code] += 1
                    else:
                        item.unwrap()
        # Models hand over their counters once a second, and Prometheus fetches them once a second.
        time.sleep(1.5)
        prometheus.wait_for_scrapes(2)
    assert sum(found.values()) - before == 2 * len(PIPELINES) * 3
    return found


def bad_images(prometheus: Prometheus) -> Counter[tuple[str, str]]:
    series = prometheus.query("onestream_bad_images_total")
    return Counter({(labels["model"], labels["reason"]): round(value) for labels, value in series})


@pytest.mark.needs_triton
def test_bad_images_are_counted_and_steps_are_timed(prometheus: Prometheus, refused: Counter[tuple[str, str]]) -> None:
    counted = bad_images(prometheus)
    assert {key: counted[key] for key in refused} == refused
    assert {reason for model, reason in refused if model == "classify_fused"} >= {"corrupt", "unsupported_format"}
    for name in ("onestream_step_microseconds_total", "onestream_step_batches_total"):
        grown = prometheus.query(f"increase({name}[30s]) > 0")
        assert {(labels["model"], labels["step"]) for labels, _ in grown} >= STEPS, name


@pytest.mark.needs_triton
@pytest.mark.usefixtures("refused")
def test_panels_show_what_was_sent(prometheus: Prometheus) -> None:
    def shown(title: str) -> dict[str, float]:
        (expression,) = (one for panel, one in EXPRESSIONS.items() if panel.startswith(title))
        return {
            ".".join([labels["model"], *([labels["reason"]] if "reason" in labels else [])]): value
            for labels, value in prometheus.query(expression.replace("$__rate_interval", "30s"))
        }

    for title, expression in EXPRESSIONS.items():
        found = prometheus.query(expression.replace("$__rate_interval", "30s"))
        # Detectors are asked in test_monitoring.
        if not {name for name, _ in selectors(parse(expression))} & (GPU_METRICS | DETECTOR_METRICS):
            # Of models without traffic the means are NaN.
            assert [value for _, value in found if math.isfinite(value)], title
    assert all(shown(title)[pipeline] > 0 for title in ("Throughput", "Latency") for pipeline in PIPELINES)
    assert shown("Bad images")["classify_fused.corrupt"] > 0
    assert shown("Failed requests")["classify.OTHER"] > 0
    assert 1 <= shown("Batch size")["classify_fused"] <= 4


@pytest.mark.needs_triton
@pytest.mark.usefixtures("refused")
def test_alerts_are_loaded_evaluated_and_raised(prometheus: Prometheus) -> None:
    for rule in ALERTS:
        prometheus.query(rule["expr"])
    (group,) = prometheus.get("rules")["groups"]
    assert [(rule["name"], rule["health"]) for rule in group["rules"]] == [(rule["alert"], "ok") for rule in ALERTS]

    def alerts() -> dict[str, Any]:
        return {alert["labels"]["alertname"]: alert for alert in prometheus.get("alerts")["alerts"]}

    wait_until(lambda: {"OnestreamDown", "ManyBadImages"} <= set(alerts()))
    raised = alerts()
    # Pending, until it has lasted as long as the file says.
    pending = {"OnestreamDown": "pending", "ManyBadImages": "pending"}
    assert {name: alert["state"] for name, alert in raised.items()} == pending
    assert raised["OnestreamDown"]["labels"]["instance"] == prometheus.targets[1]
    assert raised["OnestreamDown"]["annotations"]["summary"] == f"No server answers at {prometheus.targets[1]}."


def test_the_documented_commands_accept_the_files() -> None:
    (block,) = (block for block in blocks("monitoring.md", "bash") if "promtool" in block)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert [line[:3] for line in lines] == [["promtool", "check", "config"], ["promtool", "test", "rules"]]
    for line in lines:
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
