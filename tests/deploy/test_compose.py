"""docker-compose.yml, resolved by the real `docker compose config`: who is reached, and what may be written."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from resolved_compose import ROOT, services

from onestream.serving.server.triton.installation import _STACK_KB

SERVERS = ("gpu", "cpu")
PUBLIC = "proxy/compose.public.yml"


@pytest.fixture
def every() -> dict[str, Any]:
    return services("gpu", "cpu", "bench")


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, every: dict[str, Any]) -> dict[str, Any]:
    return every[request.param]


def mounts(service: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {volume["target"]: volume for volume in service["volumes"]}


def published(service: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Address, the container's port, and the published port."""
    return [(port["host_ip"], port["target"], port["published"]) for port in service.get("ports", [])]


def test_a_profile_starts_its_services(every: dict[str, Any]) -> None:
    others = {"proxy", "prometheus", "grafana"}
    assert set(services()) == {"gpu", *others}, "by the committed .env"
    assert set(services("cpu")) == {"cpu", *others}
    assert set(every) == {"gpu", "cpu", "bench", *others}


def test_a_server_can_write_only_to_its_cache_and_to_memory(server: dict[str, Any]) -> None:
    assert server["read_only"]
    assert list(mounts(server)) == ["/var/cache/onestream"]
    assert (server["cap_drop"], server["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert not server.get("privileged")
    assert int(server["shm_size"]) >= 2**30
    # No less than what Triton's threads are started with.
    assert server.get("ulimits", {}).get("stack", {"hard": math.inf})["hard"] >= _STACK_KB * 1024
    # Triton runs its Python backend from the temporary folder.
    (temporary,) = server["tmpfs"]
    path, _, options = temporary.partition(":")
    assert path == "/tmp"
    assert "exec" in options.split(",")
    # The name that others use.
    assert server["networks"]["default"]["aliases"] == ["onestream"]


def test_a_server_is_reached_through_the_proxy_only_and_from_this_machine(every: dict[str, Any]) -> None:
    assert {address for service in every.values() for address, _, _ in published(service)} == {"127.0.0.1"}
    assert [published(every[name]) for name in SERVERS] == [[], []]
    assert published(every["proxy"]) == [("127.0.0.1", 8000, "8000"), ("127.0.0.1", 8001, "8001")]
    assert (every["proxy"]["read_only"], every["proxy"]["cap_drop"]) == (True, ["ALL"])
    # After whichever runs.
    condition = {"condition": "service_started", "restart": True, "required": False}
    assert {name: every["proxy"]["depends_on"][name] for name in SERVERS} == dict.fromkeys(SERVERS, condition)


def test_other_machines_reach_one_port_with_tls_and_tokens(every: dict[str, Any]) -> None:
    plain = services("cpu", environment={"ONESTREAM_BIND": "0.0.0.0", "ONESTREAM_GRPC_PORT": "9001"})["proxy"]
    assert published(plain) == [("127.0.0.1", 8000, "8000"), ("127.0.0.1", 8001, "9001")], "plain, so never beyond"
    environment = {"ONESTREAM_BIND": "192.0.2.7", "ONESTREAM_PORT": "8443"}
    assert published(services("cpu", environment=environment, more=PUBLIC)["proxy"]) == [("192.0.2.7", 8443, "8443")]
    opened = services("cpu", more=PUBLIC)
    assert published(opened["proxy"]) == [("0.0.0.0", 8443, "443")]
    assert all(published(opened[name]) == published(every[name]) for name in opened if name != "proxy")
    mounted = mounts(opened["proxy"])
    configs = [Path(mounted.pop(f"/etc/onestream/{name}.conf")["source"]) for name in ("nginx", "listen")]
    assert configs == [ROOT / "deploy" / "proxy" / name for name in ("nginx.conf", "listen/public.conf")]
    named = re.findall(r"(/etc/onestream/\w+)/", "".join(config.read_text(encoding="utf-8") for config in configs))
    assert set(named) == set(mounted)
    assert Path(mounted["/etc/onestream/tokens"]["source"]) == ROOT / "tokens"
    assert all(volume["read_only"] for volume in mounted.values())


def test_with_mps_the_gpu_s_server_is_started_as_the_image_starts_it() -> None:
    plain, server = services("gpu")["gpu"], services("gpu", more="mps/compose.mps.yml")["gpu"]
    stage = (ROOT / "Dockerfile").read_text().partition(" AS gpu\n")[2].partition("\nFROM ")[0]
    entrypoint, command = (
        json.loads(re.findall(rf"^{name} (\[.*\])$", stage, re.M)[0]) for name in ("ENTRYPOINT", "CMD")
    )
    first, *shell = server["entrypoint"]
    assert [first, "onestream"] == entrypoint
    assert "nvidia-cuda-mps-control -d && exec onestream" in shell[2]
    assert server["command"] == command
    assert set(server["environment"].values()) == {"/tmp/mps"}
    for name in ("entrypoint", "command", "environment"):
        plain[name] = server[name]
    assert server == plain


def test_only_the_gpu_profile_asks_for_a_gpu_and_the_environment_names_it_and_the_base_image() -> None:
    image = "nvcr.io/nvidia/tritonserver@sha256:" + "0" * 64
    chosen = services("gpu", "cpu", environment={"ONESTREAM_GPU": "3", "TRITON_IMAGE": image})
    assert not chosen["cpu"].get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices")
    (device,) = chosen["gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["3"], "capabilities": ["gpu"]}
    assert chosen["gpu"]["build"]["args"] == {"TRITON_IMAGE": image}
    default = services()["gpu"]["build"]
    assert default.get("args", {}) == {}, "else the Dockerfile's own default would never hold"


def test_the_load_generator_is_of_the_server_s_release(every: dict[str, Any]) -> None:
    default = re.search(r"^ARG TRITON_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert every["bench"]["image"] == f"{default[1]}-sdk"
    assert "onestream" in every["bench"]["entrypoint"]
    assert "onestream:8002" in (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()


def test_what_is_mounted_from_the_project_exists_and_cannot_be_changed(every: dict[str, Any]) -> None:
    binds = [volume for service in every.values() for volume in service.get("volumes", []) if volume["type"] == "bind"]
    assert len(binds) == 8
    for volume in binds:
        assert Path(volume["source"]).exists(), volume
        assert volume["read_only"], volume
