"""JSON Schema of KServe's InferenceService, from the models that the package `kserve` generates from its OpenAPI.

The package's own dependencies would replace half of the environment, so it is installed without them and read, not
imported. Kubernetes' types in it come from `kubernetes-validate`.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from importlib import resources, util
from pathlib import Path
from typing import Any

import jsonschema

_ATOMS: dict[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "object": {},
    "datetime": {"type": "string"},
    "IntOrString": {"type": ["integer", "string"]},
    "ResourceQuantity": {"type": ["number", "string"]},
}
# OpenAPI's names without packages, as Kubernetes' client has them, where the package is not core.
_PACKAGES = ("io.k8s.api.core.v1.", "io.k8s.api.apps.v1.", "io.k8s.apimachinery.pkg.apis.meta.v1.")


def installed() -> bool:
    return util.find_spec("kserve") is not None and util.find_spec("kubernetes_validate") is not None


def errors(manifest: dict[str, Any], *, kubernetes: str) -> list[str]:
    """What is wrong with an InferenceService, by path; ``kubernetes`` is the version of Kubernetes' types."""
    validator = jsonschema.Draft202012Validator(schema(kubernetes))
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(manifest)]


@cache
def schema(kubernetes: str) -> dict[str, Any]:
    """The whole schema, strict: unknown fields are errors."""
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{kubernetes}.0-local-strict"
    definitions: dict[str, Any] = json.loads((folder / "_definitions.json").read_text())["$defs"]
    models, found = _models(), {}
    for name, fields in models.items():
        properties = {field: _of_type(kind, models, definitions) for field, kind in fields.items()}
        found[name] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"$ref": "#/$defs/V1beta1InferenceService", "$defs": {**definitions, **found}}


def _models() -> dict[str, dict[str, str]]:
    """Of every model its fields: name in JSON → type."""
    found = {}
    for file in (Path(util.find_spec("kserve").origin).parent / "models").glob("v1beta1_*.py"):
        text = file.read_text(encoding="utf-8")
        names, kinds = (
            ast.literal_eval(re.findall(rf" {table} = (\{{.*?\}})", text, re.DOTALL)[0])
            for table in ("attribute_map", "openapi_types")
        )
        found[re.findall(r"^class (\w+)", text, re.MULTILINE)[0]] = {names[field]: kinds[field] for field in kinds}
    return found


def _of_type(kind: str, models: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        return {"type": "array", "items": _of_type(match[1], models, definitions)}
    if match := re.fullmatch(r"dict\(str, (.+)\)", kind):
        return {"type": "object", "additionalProperties": _of_type(match[1], models, definitions)}
    if kind in models:
        return {"$ref": f"#/$defs/{kind}"}
    bare = re.sub(r"^(V1|K8sIoApi(Core|Apps)V1|K8sIoApimachineryPkgApisMetaV1)(?=[A-Z])", "", kind)
    for package in _PACKAGES:
        if package + bare in definitions:
            return {"$ref": f"#/$defs/{package}{bare}"}
    return _ATOMS.get(kind, {})
