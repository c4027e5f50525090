"""Prometheus' configuration and Grafana's dashboard against a real server's metrics."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import detectors
import numpy as np
import promql_parser
import pytest
import yaml
from patience import PATIENCE_S
from resolved_compose import ROOT, services

from onestream.client import Client
from onestream.serving.building.build import build
from onestream.serving.server.server import Server

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "onestream.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [
    pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")
    for panel in PANELS
    for target in panel["targets"]
]
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
# Triton has them only where it sees a GPU; the names are those of its docs/user_guide/metrics.md.
GPU_METRICS = {
    "nv_gpu_utilization",
    "nv_gpu_memory_used_bytes",
    "nv_gpu_memory_total_bytes",
    "nv_gpu_power_usage",
}
# What a detector has, and the default pipeline has not.
DETECTOR_METRICS = {"onestream_objects_total", "onestream_candidates_dropped_total"}


def parse(expression: str) -> Any:
    """Parse an expression as Prometheus does; Grafana's variables become what it would write."""
    return promql_parser.parse(expression.replace("$__rate_interval", "1m"))


def selectors(node: Any) -> Iterator[tuple[str, set[str]]]:
    """Every metric that an expression reads, with the labels that it needs: its matchers', and those it groups by."""
    match node:
        case promql_parser.VectorSelector():
            yield node.name, {matcher.name for matcher in node.matchers.matchers}
        case promql_parser.MatrixSelector():
            yield from selectors(node.vector_selector)
        case promql_parser.Call():
            for argument in node.args:
                yield from selectors(argument)
        case promql_parser.AggregateExpr():
            grouped = set(node.modifier.labels) if node.modifier is not None else set()
            for name, labels in selectors(node.expr):
                yield name, labels | grouped
        case promql_parser.BinaryExpr():
            yield from selectors(node.lhs)
            yield from selectors(node.rhs)
        case promql_parser.NumberLiteral():
            pass
        case _:
            raise NotImplementedError(f"this test does not know {type(node).__name__}")


@pytest.fixture(scope="module")
def metrics(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Names of real servers' metrics, with their labels: of good and bad images in both forms, and of objects."""
    with Client(server.grpc_address) as client:
        for pipeline in ("classify", "classify_fused"):
            photos = [ROOT / "examples" / "photos" / "coffee.jpg", b"not an image"]
            assert [item.error is None for item in client.classify_many(photos, pipeline=pipeline)] == [True, False]
    return with_labels(server, until={"onestream_bad_images_total"}) | of_a_detector(tmp_path_factory.mktemp("cells"))


def of_a_detector(folder: Path) -> dict[str, set[str]]:
    """The metrics of a detector that finds an object and a NaN."""
    detectors.level_detector(folder / "cells.onnx", bad="nan")
    (folder / "cells.yaml").write_text(yaml.safe_dump(detectors.pipeline("cells")))
    build(folder / "cells.yaml", folder=folder / "repository", onnx_file=folder / "cells.onnx")
    picture = np.zeros((detectors.SIDE, detectors.SIDE, 3), np.uint8)
    picture[: detectors.CELL, : detectors.CELL, 0], picture[-detectors.CELL :, -detectors.CELL :, 0] = 255, 128
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    with (
        Server(folder / "repository", **ports, models=["cells_fused"]) as server,
        Client(server.grpc_address) as client,
    ):
        assert len(client.detect(picture, pipeline="cells_fused")) == 1
        return with_labels(server, until=DETECTOR_METRICS)


def with_labels(server: Server, *, until: set[str]) -> dict[str, set[str]]:
    """The names of a server's metrics, with their labels, when it has all of these."""
    # Models hand over their counters once a second.
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found: dict[str, set[str]] = {}
        with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
            for line in answer.read().decode().splitlines():
                if line and not line.startswith("#"):
                    name, labels = re.match(r"(\w+)(?:\{(.*)\})?", line).groups()  # type: ignore[union-attr]
                    found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels or ""))
        if until <= found.keys() or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_is_promql(expression: str) -> None:
    assert list(selectors(parse(expression)))


@pytest.mark.slow
@pytest.mark.needs_triton
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_reads_what_the_server_has(expression: str, metrics: dict[str, set[str]]) -> None:
    for name, labels in selectors(parse(expression)):
        if name not in GPU_METRICS:
            assert name in metrics
            assert labels <= metrics[name], name


def test_an_error_in_an_expression_would_be_found() -> None:
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        parse("sum(rate(nv_inference_count[$__rate_interval])")


def test_the_dashboard_shows_what_an_operator_looks_for() -> None:
    read = {name for parameter in EXPRESSIONS for name, _ in selectors(parse(str(parameter.values[0])))}
    assert {
        "nv_inference_request_success",
        "nv_inference_queue_duration_us",
        "nv_inference_exec_count",
        "onestream_step_microseconds_total",
        "onestream_bad_images_total",
        "onestream_objects_total",
        "nv_gpu_memory_used_bytes",
        "nv_gpu_utilization",
    } <= read


def test_panels_are_told_apart_described_and_side_by_side() -> None:
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert all(panel["description"] for panel in PANELS)


def test_panels_ask_the_provisioned_data_source() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    asked = {panel["datasource"]["uid"] for panel in PANELS}
    asked |= {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]}
    assert asked == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services("cpu"), "the host in that address"


def test_grafana_finds_the_dashboard_where_the_container_has_it() -> None:
    grafana = services("cpu")["grafana"]
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/onestream.yml").read_text())["providers"]
    mounted = {volume["target"]: volume["source"] for volume in grafana["volumes"] if volume["type"] == "bind"}
    assert mounted[provider["options"]["path"]] == str(DEPLOY / "grafana" / "dashboards")
    assert mounted["/etc/grafana/provisioning"] == str(DEPLOY / "grafana" / "provisioning")
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/onestream.json"


def test_grafana_knows_how_often_prometheus_looks() -> None:
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]


def test_the_documented_metrics_are_those_of_the_dashboard() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    table = page[page.index("| panel |") :].partition("\n\n")[0]
    named = [name.replace("*", r"\w+") for name in re.findall(r"`((?:nv|onestream)_[\w*]+)`", table)]
    read = {name for parameter in EXPRESSIONS for name, _ in selectors(parse(str(parameter.values[0])))}
    assert not [name for name in read if not any(re.fullmatch(pattern, name) for pattern in named)]
    assert not [pattern for pattern in named if not any(re.fullmatch(pattern, name) for name in read)]


def test_the_documented_alerts_are_those_of_the_file() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    table = page[page.index("| alert |") :].partition("\n\n")[0]
    documented = [
        (name, condition.replace("\\|", "|"), lasting)
        for name, condition, lasting in re.findall(r"^\| `(\w+)` \| `(.+?)` \| (\w+) \|", table, re.MULTILINE)
    ]
    assert documented == [(rule["alert"], rule["expr"], rule["for"]) for rule in ALERTS]


@pytest.mark.slow
@pytest.mark.needs_triton
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_reads_what_the_server_has(alert: dict[str, Any], metrics: dict[str, set[str]]) -> None:
    for name, labels in selectors(parse(alert["expr"])):
        # `up` is Prometheus' own.
        if name not in GPU_METRICS | {"up"}:
            assert labels <= metrics[name], name
