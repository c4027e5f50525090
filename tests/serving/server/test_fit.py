"""One process per core, whatever machine the repository was generated on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onestream.serving.built.triton_config import from_text
from onestream.serving.pipeline import GpuOptions
from onestream.serving.server import fit
from onestream.serving.server.fit import fit_instances, startup_limit_s, usable_cores

COMMITTED = Path(__file__).parents[3] / "model_repository"


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_counts_follow_the_cores_and_nothing_else_changes(tmp_path: Path, cores: int) -> None:
    """A repository that fits is served as it is."""
    view = fit_instances(COMMITTED, tmp_path / "view", cores=cores)
    assert (view == COMMITTED) == (not (tmp_path / "view").exists()) == (cores == 2)
    for model in (path for path in COMMITTED.iterdir() if path.is_dir()):
        for file in (path.relative_to(COMMITTED) for path in model.rglob("*") if path.is_file()):
            if file.name != "cpu.pbtxt":
                assert (view / file).read_bytes() == (COMMITTED / file).read_bytes()
                continue
            fitted, committed = from_text((view / file).read_text()), from_text((COMMITTED / file).read_text())
            alone = model.name in ("classify_postprocess", "classify_video")
            # Behind a bounded queue the fused form has one more.
            expected = cores + 1 if model.name == "classify_fused" else max(2, cores)
            assert fitted.instance_group[0].count == (1 if alone else expected)
            assert fitted.dynamic_batching.default_queue_policy.max_queue_size == (0 if alone else 32 * cores)
            for config in (fitted, committed):
                config.ClearField("instance_group")
                config.dynamic_batching.default_queue_policy.ClearField("max_queue_size")
            assert fitted == committed


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", 8),
        ("400000 100000", 4),
        ("150000 100000", 2),
        ("50000 100000", 1),
        ("6400000 100000", 8),
        ("", 8),
    ],
)
def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int) -> None:
    """Else 64 processes would share the time of 4 cores."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "cpu.max").write_text(quota)
    assert usable_cores(tmp_path / "cpu.max") == expected
    assert usable_cores(tmp_path / "absent") == 8


def test_a_start_may_take_longer_with_more_models_and_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for load, models, limit_s in ((0.5, 5, 120), (0.5, 30, 300), (8, 5, 480), (8, 30, 1200), (400, 5, 1200)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        assert startup_limit_s(models) == limit_s


@pytest.mark.parametrize("cores", [2, 5])
def test_what_a_machine_with_a_gpu_runs_on_its_cpu_fits_its_cores(tmp_path: Path, cores: int) -> None:
    """Of two models one is on the CPU there too, and one on the GPU, where a count is of GPUs."""
    repository = tmp_path / "repository"
    for name, kind in (("both", "KIND_CPU"), ("split", "KIND_GPU")):
        (repository / name / "configs").mkdir(parents=True)
        for file, own in (("config.pbtxt", kind), ("configs/cpu.pbtxt", "KIND_CPU")):
            (repository / name / file).write_text(
                f'name: "{name}" instance_group {{ count: 2 kind: {own} }}\n'
                'parameters { key: "cpu_instances" value { string_value: "cores" } }\n'
                'parameters { key: "cpu_queue" value { string_value: "cores" } }\n'
                "dynamic_batching { default_queue_policy { max_queue_size: 64 } }\n"
            )
    view = fit_instances(repository, tmp_path / "view", cores=cores, device="gpu")
    assert (view == repository) == (cores == 2)

    def fitted(path: str) -> tuple[int, int]:
        config = from_text((view / path).read_text())
        return config.instance_group[0].count, config.dynamic_batching.default_queue_policy.max_queue_size

    assert fitted("both/config.pbtxt") == (cores, 32 * cores)
    # Nobody reads the configurations of a machine without one.
    for path in ("split/config.pbtxt", "both/configs/cpu.pbtxt", "split/configs/cpu.pbtxt"):
        assert fitted(path) == (2, 64)


@pytest.mark.parametrize(
    ("cores", "gpus", "threads"), [(1, 1, 2), (4, 1, 2), (16, 0, 5), (16, 1, 5), (128, 1, 16), (128, 8, 7)]
)
def test_decoders_on_a_gpu_s_machine_share_its_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int, gpus: int, threads: int
) -> None:
    monkeypatch.setattr(fit, "gpus_visible", lambda: gpus)
    view = fit_instances(COMMITTED, tmp_path / "view", cores=cores, device="gpu")
    fitted, committed = (from_text((one / "classify_fused/config.pbtxt").read_text()) for one in (view, COMMITTED))
    found = GpuOptions.model_validate_json(fitted.parameters["gpu"].string_value)
    assert found == GpuOptions(precision="fp32", decode_threads=threads)
    # A number in the file stays, and whoever serves it without us has the least.
    committed.parameters["gpu"].string_value = GpuOptions(decode_threads=3).model_dump_json()
    (tmp_path / "own" / "mine").mkdir(parents=True)
    (tmp_path / "own" / "mine" / "config.pbtxt").write_text(str(committed))
    assert fit_instances(tmp_path / "own", tmp_path / "other", cores=cores, device="gpu") == tmp_path / "own"
    assert GpuOptions().decoder_threads == 2
    assert GpuOptions(gpus=(1,)).threads_for(16, gpus=8) == 5
