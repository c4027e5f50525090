"""The GPU memory in which tensors wait between the steps of ensembles: its size, and who says what is too much."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from onestream.serving.built import memory_pool
from onestream.serving.built.triton_config import from_text, to_text
from onestream.serving.server import doctor

COMMITTED = Path(__file__).parents[3] / "model_repository"
CONFIGS = memory_pool.configs_in(COMMITTED)
PIXELS, LOGITS = 224 * 224 * 3, 4096
assert PIXELS % 512 == 0
QUEUED = 256 * 3
"""Of each of the three priorities."""


def changed(**places: dict[str, object]) -> dict[str, object]:
    """The committed configurations with other numbers."""
    configs = {name: from_text(to_text(config, source="x")) for name, config in CONFIGS.items()}
    for model, numbers in places.items():
        config = configs[model]
        config.dynamic_batching.default_queue_policy.max_queue_size = numbers.get("queue", 256)
        config.instance_group[0].gpus.extend(numbers.get("gpus", ()))
    return configs


def test_the_pool_holds_what_may_wait_and_what_is_on_its_way() -> None:
    # Two instances work on a batch each, one is being made up, and preprocessing gives one away.
    pixels = PIXELS * (QUEUED + 64 * (2 + 1) + 64)
    # Nothing bounds the last step's queue but the steps before it.
    logits = LOGITS * (256 + 64 * (1 + 1) + 2 * 64)
    assert memory_pool.pools(CONFIGS) == {None: pixels + logits}
    assert [memory_pool.usual_queue(batch) for batch in (1, 64, 256)] == [256, 256, 1024]
    assert memory_pool.largest({None: 5, 1: 7, 2: 6}) == (64 << 20) + 12
    assert memory_pool.triton_flags({None: 5, 1: 7}, gpus=1) == [
        "--pinned-memory-pool-byte-size=0",
        f"--cuda-memory-pool-byte-size=0:{(64 << 20) + 5}",
        f"--cuda-memory-pool-byte-size=1:{(64 << 20) + 12}",
    ]
    # Where nothing waits there, the pool is Triton's own.
    assert memory_pool.triton_flags({}, gpus=2) == ["--pinned-memory-pool-byte-size=0"]


def test_each_gpu_has_the_pools_of_its_own_pipelines() -> None:
    pools = memory_pool.pools(changed(classify_preprocess={"gpus": (2,)}, classify_model={"gpus": (2, 3)}))
    assert set(pools) == {2, 3}
    assert pools[3] < pools[2] // 50, "logits alone"
    # Where Triton finds a model's outputs out itself, they count nothing.
    configs = changed(classify_preprocess={"queue": 0})
    del configs["classify_preprocess"].output[:]
    assert memory_pool.pools(configs)[None] < memory_pool.pools(CONFIGS)[None] // 50, "logits alone"


def test_a_queue_without_a_bound_is_said() -> None:
    assert memory_pool.notes(CONFIGS) == []
    (note,) = memory_pool.notes(changed(classify_model={"queue": 0}))
    assert note.startswith("on a GPU any number of pictures may wait before classify_model, and those that find")
    (note,) = memory_pool.notes(changed(classify_model={"queue": 3000}))
    assert note.startswith("each GPU sets 1394 MB aside")


@pytest.mark.parametrize(
    ("megabytes", "status", "seen"),
    [
        ("81559", "ok", ", of 81559 MB"),
        ("400", "problem", "networks and processes need the rest"),
        ("", "ok", "cannot"),
    ],
)
def test_the_doctor_looks_at_the_gpu(monkeypatch: pytest.MonkeyPatch, megabytes: str, status: str, seen: str) -> None:
    monkeypatch.setattr(doctor, "driver_visible", lambda: True)
    monkeypatch.setattr(doctor.shutil, "which", lambda _name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(doctor, "ended", lambda _command: SimpleNamespace(stdout=f"{megabytes}\n{megabytes}\n"))
    (check,) = doctor.run_checks(repository=COMMITTED, only={"GPU memory"})
    assert (check.status, seen in check.found) == (status, True), check
