"""Plans on disk: found again, built again where they do not fit, and built once however many ask."""

from __future__ import annotations

import dataclasses
import json
import re
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENCE_S
from served_networks import ADA, convolutional, served

from onestream.preprocess.cuda.device import GpuKind
from onestream.serving.engine import library
from onestream.serving.engine.cache import PlanKey, ensure_plan, read_plan
from onestream.serving.engine.plan import PlanOptions
from onestream.serving.errors import BadNetwork, BadPlan
from onestream.serving.server import plan_process
from onestream.serving.server.tensorrt_prebuild import PlanRequest

pytestmark = pytest.mark.skipif(not library.IS_RTX, reason="TensorRT builds on a GPU only: see test_engine_on_gpu.py")

OPTIONS = PlanOptions(max_batch_size=4)
L40S, L4, A100 = GpuKind(ADA, "NVIDIA L40S"), GpuKind(ADA, "NVIDIA L4"), GpuKind((8, 0), "NVIDIA A100-PCIE-40GB")


@pytest.fixture(scope="module")
def model() -> bytes:
    return bytes(served(convolutional()).SerializeToString())


class Asked:
    """Calls of ``ensure_plan`` over one folder, and what each of them built."""

    def __init__(self, folder: Path, model: bytes) -> None:
        self.folder, self.model = folder, model
        self.lines: list[str] = []

    def __call__(self, options: PlanOptions = OPTIONS, gpu: GpuKind = L40S, model: bytes = b"") -> Path:
        self.lines.clear()
        return ensure_plan(model or self.model, options, gpu=gpu, folder=self.folder, progress=self.lines.append)

    @property
    def built(self) -> bool:
        return any(line.startswith("building a TensorRT plan") for line in self.lines)


@pytest.fixture
def ask(tmp_path: Path, model: bytes) -> Asked:
    return Asked(tmp_path / "engines", model)


def test_a_plan_is_built_once_and_found_without_writing_anything(ask: Asked) -> None:
    path = ask()
    assert ask.built
    assert re.match(r"built the plan in \d+\.\d s \(\d+\.\d MB\)", ask.lines[-1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "a server of another user reads it"
    # Nobody can lock a folder, nor write beside one that is none.
    (ask.folder / "build.lock").unlink()
    (ask.folder / "build.lock").mkdir()
    assert ask() == path
    assert ask.lines == []


def test_every_part_of_the_key_gets_a_plan_of_its_own(ask: Asked) -> None:
    other = bytes(served(convolutional(seed=1)).SerializeToString())
    paths = {ask(), ask(PlanOptions(8)), ask(PlanOptions(4, "fp16")), ask(PlanOptions(4, "tf32"))}
    paths |= {ask(gpu=A100), ask(model=other)}
    assert len(paths) == 6
    for path in paths:
        assert path.exists()


def test_each_kind_of_gpu_gets_a_plan_where_kernels_are_timed(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(gpu=L40S) == ask(gpu=L4), "TensorRT for RTX times no kernels"
    # What is built is still of TensorRT for RTX; what is asked for is what TensorRT would be asked for.
    monkeypatch.setattr(library, "IS_RTX", False)
    paths = {kind: ask(gpu=kind) for kind in (L40S, L4)}
    assert paths[L40S] != paths[L4]
    assert ask(gpu=L40S) == paths[L40S]
    assert not ask.built
    assert len([*ask.folder.glob("timing-*.cache")]) == 3
    read_plan(paths[L4], gpu=L4)
    with pytest.raises(BadPlan, match=r"was built on NVIDIA L4; this GPU is NVIDIA L40S$"):
        read_plan(paths[L4], gpu=L40S)


def test_no_part_of_the_key_is_left_out_of_its_digest() -> None:
    key = PlanKey("a" * 64, "tensorrt", "11.1.0", "8.9", "NVIDIA L4", 4, "fp32", version_compatible=False, recipe=1)
    changes = {"max_batch_size": 7, "version_compatible": True}
    for field in dataclasses.fields(key):
        changed = dataclasses.replace(key, **{field.name: changes.get(field.name, "something else")})
        assert changed.digest != key.digest


Harm = Callable[[Path], object]


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def sidecar_as(change: Callable[[str], str]) -> Harm:
    """The plan's description becomes what ``change`` makes of it."""

    def harm(path: Path) -> None:
        sidecar = path.with_suffix(".json")
        sidecar.write_text(change(sidecar.read_text()))

    return harm


SOMETHING_ELSE = '{"key": {"color": "green"}, "plan_sha256": ""}'


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (flip_a_bit, "is damaged"),
        (Path.unlink, "No such file"),
        (lambda path: path.with_suffix(".json").unlink(), r"has no \w+\.json beside it"),
        (sidecar_as(lambda _: "{"), "is not the description of a plan"),
        (sidecar_as(lambda _: SOMETHING_ELSE), "is not the description of a plan"),
        (sidecar_as(lambda text: text.replace('"8.9"', '"9.0"')), r"for compute capability 9\.0; this GPU has 8\.9"),
        (sidecar_as(lambda text: text.replace(library.VERSION, "10.3.0")), r"with tensorrt_rtx 10\.3\.0; here is Ten"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused_and_built_again(ask: Asked, harm: Harm, said: str) -> None:
    path = ask()
    harm(path)
    with pytest.raises(BadPlan, match=said) as error:
        read_plan(path, gpu=L40S)
    assert "\n" not in str(error.value)
    assert str(path.parent) not in str(error.value)
    assert ask() == path
    assert ask.built
    read_plan(path, gpu=L40S)


def test_a_newer_tensorrt_takes_a_version_compatible_plan(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ask()
    sidecar_as(lambda text: text.replace('"version_compatible": false', '"version_compatible": true'))(path)
    for version, fits in (("1.7.2.0", True), ("1.10.0", True), ("1.6.9", False), ("2.0.0", False)):
        monkeypatch.setattr(library, "VERSION", version)
        if fits:
            read_plan(path, gpu=L40S)
        else:
            with pytest.raises(BadPlan, match="was built with"):
                read_plan(path, gpu=L40S)


def test_what_a_build_learned_is_kept_for_the_next(ask: Asked) -> None:
    ask()
    (cache,) = ask.folder.glob("timing-*.cache")
    assert cache.name == f"timing-tensorrt_rtx-{library.VERSION}-8.9.cache"
    assert cache.stat().st_size > 0
    cache.write_bytes(b"damaged")
    ask(PlanOptions(8))
    assert cache.read_bytes() != b"damaged"


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path, model: bytes) -> None:
    (tmp_path / "file").write_text("")
    said = r"engine cache .* cannot be written: Not a directory; ONESTREAM_CACHE names another"
    with pytest.raises(BadPlan, match=said):
        ensure_plan(model, OPTIONS, gpu=L40S, folder=tmp_path / "file" / "engines")


def test_a_failed_build_leaves_nothing_that_counts(ask: Asked) -> None:
    with pytest.raises(BadNetwork):
        ask(model=b"no network")
    assert [path.name for path in ask.folder.iterdir()] == ["build.lock"]


def test_builds_of_different_plans_wait_for_each_other(ask: Asked) -> None:
    import fcntl

    ask.folder.mkdir()
    with (ask.folder / "build.lock").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread = threading.Thread(target=ask, args=(PlanOptions(2),))
        thread.start()
        deadline = time.monotonic() + PATIENCE_S
        while not ask.lines and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ask.lines == ["waiting for another process that builds a TensorRT plan"]
    thread.join()
    assert ask.built


def test_threads_that_ask_at_once_get_one_build(tmp_path: Path, model: bytes) -> None:
    asked = [Asked(tmp_path / "engines", model) for _ in range(3)]
    threads = [threading.Thread(target=ask) for ask in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(ask.built for ask in asked) == 1


# ---- by the process that builds them, for a machine whose GPUs differ


class ThreeGpus:
    """Three pretended GPUs of two kinds; ``entered`` are those that became the current one, in order."""

    kinds = (GpuKind(ADA, "NVIDIA L4"), GpuKind((8, 0), "NVIDIA A100-PCIE-40GB"), GpuKind(ADA, "NVIDIA L4"))

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered: list[int] = []
        monkeypatch.setattr(plan_process, "gpu_count", lambda: len(self.kinds))
        monkeypatch.setattr(plan_process, "open_device", self._open)
        # As the code under test finds it: other tests import it anew.
        from onestream.serving.engine import library

        # Its plans are of one capability, whatever GPU is there; what is asked for is what TensorRT would be asked for.
        monkeypatch.setattr(library, "IS_RTX", False)

    def _open(self, index: int) -> SimpleNamespace:
        self.entered.append(index)
        return SimpleNamespace(kind=self.kinds[index])


@pytest.mark.parametrize(("gpus", "entered", "built"), [((), [0, 1, 2], ["8.9", "8.0"]), ((1,), [1], ["8.0"])])
def test_every_kind_of_gpu_gets_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, gpus: Any, entered: list[int], built: list[str]
) -> None:
    monkeypatch.setenv("ONESTREAM_CACHE", str(tmp_path / "cache"))
    machine = ThreeGpus(monkeypatch)
    (tmp_path / "model.onnx").write_bytes(served(convolutional()).SerializeToString())
    request = PlanRequest(model="m", version="1", network=tmp_path / "model.onnx", max_batch_size=4, gpus=gpus)
    assert plan_process.main([request.model_dump_json()]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (plans,) = [answer["plans"] for answer in answers if "plans" in answer]
    assert machine.entered == entered
    assert list(plans) == built
    assert len({Path(path).read_bytes() for path in plans.values()}) == len(built)
    assert sum("building a TensorRT plan" in str(answer) for answer in answers) == len(built)
