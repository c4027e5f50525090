"""Prometheus' configuration and Grafana's dashboard against a real server's metrics."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import detectors
import numpy as np
import promql_parser
import pytest
import yaml
from patience import wait_until
from resolved_compose import ROOT, services
from shared_server import CLASSIFY, SharedServer

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "onestream.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = {f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]}
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
# Triton has them only where it sees a GPU; the names are those of its docs/user_guide/metrics.md.
GPU_METRICS = {
    *("nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_memory_total_bytes", "nv_gpu_power_usage"),
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


COUNTED = detectors.served("counted", bad="nan", models=("counted_fused",))
"""A detector that finds objects, and numbers that are none."""
pytestmark = pytest.mark.serves(CLASSIFY, COUNTED)


@pytest.fixture(scope="module")
def metrics(server: SharedServer) -> dict[str, set[str]]:
    """Names of a real server's metrics, with their labels: of good and bad images in both forms, and of objects."""
    from onestream.client import Client

    picture = np.zeros((detectors.SIDE, detectors.SIDE, 3), np.uint8)
    picture[: detectors.CELL, : detectors.CELL, 0], picture[-detectors.CELL :, -detectors.CELL :, 0] = 255, 128
    with Client(server.grpc_address) as client:
        for pipeline in ("classify", "classify_fused"):
            photos = [ROOT / "examples" / "photos" / "coffee.jpg", b"not an image"]
            assert [item.error is None for item in client.classify_many(photos, pipeline=pipeline)] == [True, False]
        assert len(client.detect(picture, pipeline="counted_fused")) == 1
    found: dict[str, set[str]] = {}

    def are_all_there() -> bool:
        with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
            for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})?", answer.read().decode(), re.MULTILINE):
                found.setdefault(name, set()).update(re.findall(r"(\w+)=", labels))
        return {"onestream_bad_images_total", *DETECTOR_METRICS} <= found.keys()

    # Models hand over their counters once a second.
    wait_until(are_all_there)
    return found


@pytest.mark.needs_triton
def test_the_dashboard_and_the_alerts_read_what_the_server_has(metrics: dict[str, set[str]]) -> None:
    rules = {rule["alert"]: rule["expr"] for rule in ALERTS}
    # `up` is Prometheus' own.
    others = GPU_METRICS | {"up"}
    for title, expression in {**EXPRESSIONS, **rules}.items():
        for name, labels in selectors(parse(expression)):
            assert name in others or name in metrics, f"{title}: {name}"
            assert name in others or labels <= metrics[name], f"{title}: {name}"


def test_grafana_is_provisioned_with_the_dashboard_and_its_data_source() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    asked = {one["datasource"]["uid"] for panel in PANELS for one in (panel, *panel["targets"])}
    assert asked == {source["uid"]}
    assert source["url"] == "http://prometheus:9090"
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]
    assert "prometheus" in services("cpu"), "the host in that address"
    grafana = services("cpu")["grafana"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "onestream.yml").read_text())["providers"]
    mounted = {volume["target"]: volume["source"] for volume in grafana["volumes"] if volume["type"] == "bind"}
    assert mounted[provider["options"]["path"]] == str(DEPLOY / "grafana" / "dashboards")
    assert mounted["/etc/grafana/provisioning"] == str(provisioning)
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/onestream.json"


def test_the_documented_metrics_and_alerts_are_those_of_the_dashboard_and_of_the_file() -> None:
    panels, alerts = (PAGE[PAGE.index(f"| {name} |") :].partition("\n\n")[0] for name in ("panel", "alert"))
    named = [name.replace("*", r"\w+") for name in re.findall(r"`((?:nv|onestream)_[\w*]+)`", panels)]
    read = {name for expression in EXPRESSIONS.values() for name, _ in selectors(parse(expression))}
    assert not [name for name in read if not any(re.fullmatch(pattern, name) for pattern in named)]
    assert not [pattern for pattern in named if not any(re.fullmatch(pattern, name) for name in read)]
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| (\w+) \|", alerts, re.MULTILINE)
    documented = [(name, condition.replace("\\|", "|"), lasting) for name, condition, lasting in rows]
    assert documented == [(rule["alert"], rule["expr"], rule["for"]) for rule in ALERTS]
