"""The RayJob: valid by KubeRay's own schema, strictly, and in agreement with the command and the lock."""

from __future__ import annotations

import json
import lzma
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from typer.testing import CliRunner

from onestream.cli.bulk.sources import is_address
from onestream.cli.main import app

ROOT = Path(__file__).parents[2]
MANIFEST: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "ray" / "rayjob.yaml").read_text())


def strict(node: Any) -> Any:
    """The same schema with unknown fields as errors: Kubernetes would drop them without a word."""
    if isinstance(node, list):
        return [strict(one) for one in node]
    if not isinstance(node, dict):
        return node
    found = {name: strict(value) for name, value in node.items()}
    # Of an object of Kubernetes itself the schema says no more than that there is one.
    is_known = found.get("type") == "object" and isinstance(found.get("properties"), dict) and found["properties"]
    if is_known and not {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & found.keys():
        found["additionalProperties"] = False
    if found.pop("x-kubernetes-int-or-string", False):
        found.pop("type", None)
    return found


def test_it_is_valid() -> None:
    schema = json.loads(lzma.decompress((ROOT / "tests" / "assets" / "kuberay_rayjob.json.xz").read_bytes()))
    found = jsonschema.Draft202012Validator(strict(schema)).iter_errors(MANIFEST)
    assert [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in found] == []


def test_its_command_exists_with_its_options_and_goes_on_where_a_killed_one_was() -> None:
    program, name, *arguments = shlex.split(MANIFEST["spec"]["entrypoint"])
    assert program == "onestream"
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    for option in (one for one in arguments if one.startswith("--")):
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", shown), option
    assert MANIFEST["spec"]["backoffLimit"] > 0
    assert "--overwrite" not in arguments
    # In the folder that the killed one wrote, which is of no machine of the cluster that is gone.
    assert is_address(arguments[arguments.index("--to") + 1])


def test_its_ray_is_the_locked_one() -> None:
    (locked,) = re.findall(r"^ray==(\S+)", (ROOT / "locks" / "dev.txt").read_text(), flags=re.MULTILINE)
    assert MANIFEST["spec"]["rayClusterSpec"]["rayVersion"] == locked


def test_every_mount_has_its_volume_and_the_model_is_where_the_command_looks() -> None:
    cluster = MANIFEST["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounts = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert "--repository /models" in MANIFEST["spec"]["entrypoint"]
    assert "/models" in [one["mountPath"] for one in mounts]
