"""Triton's own options: merged into the generated configurations, or refused by name with what to use instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from cascades import write_things
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.postprocess.network import NetworkOutput
from onestream.serving.building import pipeline_repository, triton_options
from onestream.serving.built.triton_config import from_text
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import Pipeline, ServingOptions

ROOT = Path(__file__).parents[3]


def configs(text: str) -> dict[str, ModelConfig]:
    """The configurations of ``classify`` with these serving options, by their paths."""
    options = ServingOptions.model_validate(yaml.safe_load(text))
    triton_options.check(options, "python")
    pipeline = Pipeline.from_file(ROOT / "pipelines" / "classify.yaml").model_copy(update={"serving": options})
    planned = pipeline_repository.plan(pipeline, [NetworkOutput("logits", "float32", (1000,))], labels=None)
    files = planned.files(source="classify.yaml")
    return {path: from_text(content.decode()) for path, content in files.items() if path.endswith(".pbtxt")}


def test_options_are_merged_on_each_kind_of_machine() -> None:
    found = configs("""
        triton:
          fused:
            instance_group: [{count: 3, host_policy: numa0, rate_limiter: {priority: 2}}]
            dynamic_batching: {preferred_batch_size: [4], max_queue_delay_microseconds: 500}
            parameters: {mine: {string_value: x}}
          ensemble: {version_policy: {specific: {versions: [1]}}}
        gpu: {gpus: [0, 1], triton: {fused: {instance_group: [{count: 2}, {gpus: [3]}]}}}
        cpu: {triton: {fused: {dynamic_batching: {preferred_batch_size: [2]}}}}
    """)
    plain = configs("gpu: {gpus: [0, 1]}")
    cpu, gpu = found["classify_fused/configs/cpu.pbtxt"], found["classify_fused/config.pbtxt"]
    before = plain["classify_fused/configs/cpu.pbtxt"]
    assert [(group.count, group.kind, group.host_policy) for group in cpu.instance_group] == [
        (3, ModelInstanceGroup.KIND_CPU, "numa0")
    ]
    assert [(group.count, group.kind, list(group.gpus)) for group in gpu.instance_group] == [
        (2, ModelInstanceGroup.KIND_GPU, [0, 1]),
        (1, ModelInstanceGroup.KIND_GPU, [3]),
    ]
    assert [*cpu.dynamic_batching.preferred_batch_size, *gpu.dynamic_batching.preferred_batch_size] == [2, 4]
    assert cpu.dynamic_batching.default_queue_policy == before.dynamic_batching.default_queue_policy
    assert cpu.parameters["mine"].string_value == "x"
    # The number of processes is the user's now, so that `onestream serve` leaves it alone.
    assert before.parameters.keys() - cpu.parameters.keys() == {"cpu_instances"}
    assert found["classify/config.pbtxt"].version_policy.specific.versions == [1]
    assert all(found[path] == plain[path] for path in plain if path.split("/")[0] not in ("classify", "classify_fused"))
    # A warm-up without inputs has those of the generated one.
    warm = configs("triton: {fused: {model_warmup: [{name: largest, batch_size: 8}]}}")
    (warmup,), (usual,) = warm["classify_fused/configs/cpu.pbtxt"].model_warmup, before.model_warmup
    assert (warmup.name, warmup.batch_size) == ("largest", 8)
    assert warmup.inputs["image"] == usual.inputs["image"]
    with pytest.raises(BadPipeline, match=r"serving.gpu.triton.ensemble: no such role \(allowed: preprocess, "):
        configs("gpu: {triton: {ensemble: {}}}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("fussed: {}", r"fussed: no such role \(did you mean fused\? allowed: ensemble, preprocess, model, .*video\)"),
        ("fused: {dynamic_batchin: {}}", r"fused.dynamic_batchin: no such field \(did you mean dynamic_batching\?"),
        ("fused: {instance_group: [{counts: 1}]}", r"instance_group.counts: no such field \(did you mean count\?"),
        ("fused: {instance_group: 3}", "fused: Failed to parse instance_group"),
        ("fused: {instance_group: []}", "expected at least one group"),
        ("fused: {backend: x}", "fused.backend: not an option of a pipeline: serving.gpu.engine chooses"),
        ("fused: {max_batch_size: 3}", "use serving.max_batch_size and serving.gpu.max_batch_size"),
        ("fused: {input: []}", "preprocess, network and postprocess say the tensors"),
        ("fused: {dynamic_batching: {default_queue_policy: {}}}", "use serving.max_queue_size and serving.max_queue_"),
        ("fused: {instance_group: [{kind: KIND_GPU}]}", "serving.gpu says what is on a GPU"),
        ("fused: {instance_group: [{gpus: [0]}]}", "GPUs go into serving.gpu.triton"),
        ("fused: {dynamic_batching: {preferred_batch_size: [64]}}", "64 is above max_batch_size, .* 8 there"),
        ("fused: {parameters: {gpu: {string_value: x}}}", "parameters.gpu: onestream sets it"),
        ("fused: {response_cache: {enable: true}}", "a request's parameters change this answer"),
        ("ensemble: {instance_group: []}", "an ensemble runs nothing itself"),
        ("ensemble: {ensemble_scheduling: {}}", "the steps are the pipeline's"),
        ("video: {model_transaction_policy: {decoupled: false}}", "streams are for video"),
        ("video: {instance_group: [{count: 2}]}", "streams have one instance"),
    ],
)
def test_what_would_break_a_promise_is_refused(options: str, said: str) -> None:
    with pytest.raises(BadPipeline, match=rf"^serving\.triton\..*{said}"):
        configs(f"triton: {{{options}}}")


def test_a_wrong_role_of_a_cascade_writes_nothing(tmp_path: Path) -> None:
    networks = write_things(tmp_path, serving={"triton": {"find": {}}})
    given = [f"--onnx={stage}={file}" for stage, file in networks.items()]
    command = ["build", str(tmp_path / "things.yaml"), *given, f"--repository={tmp_path / 'repository'}"]
    said = CliRunner().invoke(app, command).output
    assert "serving.triton.find: no such role" in " ".join(said.split())
    assert not (tmp_path / "repository").exists()
