"""docker-compose.yml, resolved by the real `docker compose config`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from resolved_compose import ROOT, config, services

SERVERS = ("gpu", "cpu")
ALL = services("gpu", "cpu", "bench")


def mounts(service: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {volume["target"]: volume for volume in service["volumes"]}


@pytest.mark.parametrize(
    ("profiles", "expected"),
    [
        ((), {"gpu", "proxy", "prometheus", "grafana"}),
        (("cpu",), {"cpu", "proxy", "prometheus", "grafana"}),
        (("gpu", "bench"), {"gpu", "proxy", "prometheus", "grafana", "bench"}),
    ],
    ids=["without a profile", "cpu", "gpu and bench"],
)
def test_a_profile_starts_its_services(profiles: tuple[str, ...], expected: set[str]) -> None:
    assert set(services(*profiles)) == expected


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_can_write_only_to_its_cache_and_to_memory(name: str) -> None:
    server = ALL[name]
    assert server["read_only"]
    assert list(mounts(server)) == ["/var/cache/onestream"]
    assert server["cap_drop"] == ["ALL"]
    assert server["security_opt"] == ["no-new-privileges:true"]
    assert not server.get("privileged")
    assert int(server["shm_size"]) >= 2**30


@pytest.mark.parametrize("name", SERVERS)
def test_triton_may_run_its_python_backend_from_the_temporary_folder(name: str) -> None:
    (temporary,) = ALL[name]["tmpfs"]
    path, _, options = temporary.partition(":")
    assert path == "/tmp"
    assert "exec" in options.split(",")


@pytest.mark.parametrize("name", sorted(ALL))
def test_ports_are_published_to_this_machine_only(name: str) -> None:
    for port in ALL[name].get("ports", []):
        assert port["host_ip"] == "127.0.0.1"


def published(service: dict[str, Any]) -> list[tuple[str, int, str]]:
    """Address, the container's port, and the published port."""
    return [(port["host_ip"], port["target"], port["published"]) for port in service.get("ports", [])]


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_reached_through_the_proxy_only(name: str) -> None:
    assert published(ALL[name]) == []
    assert published(ALL["proxy"]) == [("127.0.0.1", 8000, "8000"), ("127.0.0.1", 8001, "8001")]


def test_ports_and_addresses_can_be_changed() -> None:
    proxy = services("cpu", environment={"ONESTREAM_BIND": "0.0.0.0", "ONESTREAM_GRPC_PORT": "9001"})["proxy"]
    assert published(proxy) == [("127.0.0.1", 8000, "8000"), ("127.0.0.1", 8001, "9001")], "plain, so never beyond"


def test_other_machines_reach_one_port_with_tls_and_tokens() -> None:
    for environment, expected in (
        ({}, ("0.0.0.0", 8443, "443")),
        ({"ONESTREAM_BIND": "192.0.2.7", "ONESTREAM_PORT": "8443"}, ("192.0.2.7", 8443, "8443")),
    ):
        opened = services("cpu", environment=environment, public=True)
        assert published(opened["proxy"]) == [expected]
        assert {name: published(opened[name]) for name in opened if name != "proxy"} == {
            name: published(ALL[name]) for name in opened if name != "proxy"
        }
    mounted = mounts(services("cpu", public=True)["proxy"])
    config = Path(mounted["/etc/onestream/nginx.conf"]["source"])
    assert config == ROOT / "deploy" / "proxy" / "public.conf"
    named = re.findall(r"/etc/onestream/\w+", config.read_text(encoding="utf-8"))
    assert set(named) == set(mounted) - {"/etc/onestream/nginx.conf"}
    assert all(volume["read_only"] for volume in mounted.values())


@pytest.mark.parametrize("name", SERVERS)
def test_the_proxy_starts_after_whichever_server_runs(name: str) -> None:
    needed = services(name)["proxy"]["depends_on"]
    assert needed[name] == {"condition": "service_started", "restart": True, "required": False}
    assert ALL["proxy"]["read_only"]
    assert ALL["proxy"]["cap_drop"] == ["ALL"]


def test_only_the_gpu_profile_asks_for_a_gpu() -> None:
    def devices(name: str, **environment: str) -> list[dict[str, Any]]:
        service = services("gpu", "cpu", environment=environment)[name]
        found: list[dict[str, Any]] = (
            service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        )
        return found

    assert devices("cpu") == []
    (device,) = devices("gpu", ONESTREAM_GPU="3")
    assert device == {"driver": "nvidia", "device_ids": ["3"], "capabilities": ["gpu"]}


def test_a_base_image_of_the_environment_reaches_the_build() -> None:
    digest = "nvcr.io/nvidia/tritonserver@sha256:" + "0" * 64
    assert services("gpu", environment={"TRITON_IMAGE": digest})["gpu"]["build"]["args"] == {"TRITON_IMAGE": digest}
    assert services("gpu")["gpu"]["build"].get("args", {}) == {}, "else the Dockerfile's own default would never hold"


def test_a_server_has_time_to_stop_and_is_started_again() -> None:
    for name in SERVERS:
        assert ALL[name]["stop_grace_period"] == "30s"
        assert ALL[name]["restart"] == "unless-stopped"
        assert ALL[name]["init"]


def test_images_are_pinned() -> None:
    for name, service in ALL.items():
        _, _, tag = service["image"].partition(":")
        assert tag, name
        assert "latest" not in tag, name


def test_the_load_generator_is_of_the_server_s_release() -> None:
    default = re.search(r"^ARG TRITON_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert default is not None
    assert ALL["bench"]["image"] == f"{default[1]}-sdk"


def test_what_is_mounted_from_the_project_exists_and_cannot_be_changed() -> None:
    binds = [volume for service in ALL.values() for volume in service.get("volumes", []) if volume["type"] == "bind"]
    assert len(binds) == 6
    for volume in binds:
        assert Path(volume["source"]).exists(), volume
        assert volume["read_only"], volume


def test_every_server_answers_to_the_name_that_others_use() -> None:
    for name in SERVERS:
        assert ALL[name]["networks"]["default"]["aliases"] == ["onestream"]
    assert "onestream:8002" in (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text()
    assert "onestream" in ALL["bench"]["entrypoint"]


def test_nobody_may_change_a_dashboard_and_no_password_is_needed_to_look() -> None:
    environment = ALL["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert not [name for name in environment if "PASSWORD" in name]


def test_data_outlives_a_container() -> None:
    assert set(config("gpu", "cpu", "bench")["volumes"]) == {"cache", "prometheus", "grafana"}


def test_every_setting_is_documented() -> None:
    files = (ROOT / "docker-compose.yml", ROOT / "deploy" / "proxy" / "compose.public.yml")
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    settings = set(re.findall(r"\$\{(\w+)", text))
    settings |= {name for found in re.findall(r"args: \[(.*)\]", text) for name in found.split(", ")}
    page = (ROOT / "docs" / "docker.md").read_text(encoding="utf-8")
    table = page[page.index("| variable |") :].partition("\n\n")[0]
    assert set(re.findall(r"`([A-Z]+_?[A-Z_]*)`", table)) == settings
