"""A network in int8 on another processor than the one that built it: what the load, workers and the doctor tell."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnxruntime
import pytest
from int8_networks import pictures

from onestream.preprocess import BackendMissing
from onestream.serving.building.build import Built
from onestream.serving.built import certificate, here
from onestream.serving.engine import cpu
from onestream.serving.engine.quantization import Processor
from onestream.serving.models.in_process import InProcess
from onestream.serving.server.doctor import Check, run_checks

Both = tuple[Path, Path, Built]
NETWORK = "colors_model/1/model.onnx"
FLOATS = ("colors_model/1/model.float32.onnx", "colors_fused/1/model.float32.onnx")


def look(repository: Path) -> Check:
    """What the doctor says of precisions."""
    (check,) = run_checks(repository=repository, ports=(0,), only={"precision"})
    return check


def on_another_processor(monkeypatch: pytest.MonkeyPatch, *, int8_ms: float) -> None:
    """This machine has another processor than the one that built, and takes so long."""
    monkeypatch.setattr(here, "this_processor", lambda: Processor(name="Old One", instruction_sets=("avx2",)))
    monkeypatch.setattr(here, "medians_ms", lambda engines, *_args, **_options: [int8_ms, 2.0][: len(engines)])


def test_the_load_warns_where_int8_gains_nothing_on_this_processor(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    network, price = both[1] / NETWORK, both[2].quantizations["colors"]
    assert here.warning(network, price, threads=1) == "", "the build's own"
    on_another_processor(monkeypatch, int8_ms=1.5)
    assert here.warning(network, price, threads=1) == ""
    on_another_processor(monkeypatch, int8_ms=3.0)
    said = here.warning(network, price, threads=1)
    assert said.startswith("int8 takes 3.00 ms an image here, float32 2.00 ms on Old One (avx2); it was built on ")
    assert str(price.speed.processor) in said
    # Workers without Triton are told too.
    with pytest.warns(UserWarning, match=r"model colors_fused: int8 takes 3\.00 ms an image here"):
        InProcess(both[1] / "colors_fused")


def test_the_doctor_times_both(both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(both[0]).found == "every network is in float32"
    uncertified = Path(shutil.copytree(both[1], tmp_path / "repository"))
    for file in uncertified.rglob(certificate.FILE_NAME):
        file.write_text("{}")
    for repository in (both[1], uncertified):
        assert look(repository).found.startswith("colors_model: int8 takes ")
    on_another_processor(monkeypatch, int8_ms=3.0)
    check = look(both[1])
    assert (check.status, check.fix) == ("optional", "onestream build PIPELINE --precision float32")
    assert "int8 takes 3.00 ms an image here, float32 2.00 ms, so it gains nothing" in check.found
    on_another_processor(monkeypatch, int8_ms=1.0)
    assert look(both[1]).status == "ok"

    def missing(*_arguments: object, **_options: object) -> list[float]:
        raise BackendMissing("running a network by OpenVINO needs it")

    monkeypatch.setattr(here, "medians_ms", missing)
    check = look(both[1])
    said = "colors_model cannot run here: running a network by OpenVINO needs it"
    assert (check.status, check.found) == ("problem", said)


def test_a_broken_network_is_told_and_hinders_none(both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Path(shutil.copytree(both[1], tmp_path / "broken"))
    for name in FLOATS:
        (repository / name).write_bytes((repository / name).read_bytes()[:100])
    monkeypatch.setattr(here, "this_processor", lambda: Processor(name="Old One", instruction_sets=("avx2",)))
    with pytest.warns(UserWarning, match=r"model colors_fused: .* cannot be timed here.*Build them again"):
        model = InProcess(repository / "colors_fused")
    (answer,) = model([pictures(tmp_path / "pictures")[0].read_bytes()])
    assert isinstance(answer, dict)
    check = look(repository)
    assert (check.status, check.fix) == ("problem", "onestream build PIPELINE --precision int8 --calibrate PHOTOS")
    assert check.found.startswith("colors_model: model.onnx and model.float32.onnx cannot be timed here")


@pytest.mark.parametrize(("instruction_sets", "is_wide"), [(("avx2",), True), (("avx2", "avx512_vnni"), False)])
def test_sums_are_wider_where_they_would_overflow(
    both: Both, monkeypatch: pytest.MonkeyPatch, instruction_sets: tuple[str, ...], is_wide: bool
) -> None:
    """There alone: they take twice as long."""
    entries: dict[str, str] = {}

    class Options(onnxruntime.SessionOptions):
        def add_session_config_entry(self, key: str, value: str) -> None:
            entries[key] = value
            super().add_session_config_entry(key, value)

    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    processor = Processor(name="Any", instruction_sets=instruction_sets)
    monkeypatch.setattr(cpu, "this_processor", lambda: processor)
    cpu.OnnxRuntimeEngine(both[1] / NETWORK, threads=1)
    assert (entries.get("session.x64quantprecision") == "1") == is_wide
