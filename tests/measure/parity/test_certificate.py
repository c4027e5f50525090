"""The certificate: what the build writes, what a model and the doctor make of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from own_pipeline import OPERATIONS, Own

from onestream.preprocess import CenterCrop, Decode, Definition, Normalize, Pad, Resize, StampMismatch
from onestream.serving.building import certify
from onestream.serving.built import certificate
from onestream.serving.built.certificate import FILE_NAME
from onestream.serving.server.doctor import Check, run_checks

DEFINITION = Definition.model_validate({"operations": OPERATIONS})


@pytest.fixture
def repository(own: Own) -> Path:
    return own.repository


@pytest.fixture
def folder(repository: Path) -> Path:
    return repository / "mine_model"


def warnings(folder: Path) -> list[str]:
    return certificate.check(folder, DEFINITION, model="m")


def edit(folder: Path, **changes: object) -> None:
    file = folder / FILE_NAME
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def parity_check(repository: Path) -> Check:
    (check,) = run_checks(repository=repository, only={"parity"})
    return check


def test_every_model_gets_the_same_certificate_of_its_definition(repository: Path) -> None:
    """It states no time and no machine."""
    texts = {path.parent.name: path.read_text() for path in repository.glob(f"*/{FILE_NAME}")}
    assert set(texts) == {"mine", "mine_preprocess", "mine_model", "mine_postprocess", "mine_fused"}
    assert set(texts.values()) == {certify.issue(DEFINITION).text()}
    assert set(json.loads(texts["mine"])) == {"definition_digest", "versions", "photos", "stages", "unmeasured"}
    seen = certificate.read(repository / "mine")
    assert seen.definition_digest == DEFINITION.digest
    assert set(seen.versions) == {"onestream", "numpy", "pillow", "dali", "numba", "onnxruntime", "openvino"}
    assert list(seen.stages) == ["decode", "resize", "crop", "normalize"]
    assert seen.within
    assert [figures.max for figures in seen.stages.values()] == [0, 0, 0, 0]


def test_a_certificate_that_is_true_is_kept_and_another_is_replaced(repository: Path) -> None:
    folders = [repository / "mine_model", repository / "mine_fused"]
    edit(folders[0], photos=3)
    assert certify.install(DEFINITION, folders[:1])[1] == [folders[0] / FILE_NAME]  # only written anew, in our layout
    kept = certificate.read(folders[0])
    assert kept.photos == 3, "measured again without a reason"
    edit(folders[0], versions={**kept.versions, "pillow": "1.0"})
    assert set(certify.install(DEFINITION, folders)[1]) == {folders[0] / FILE_NAME}
    assert (folders[0] / FILE_NAME).read_text() == (folders[1] / FILE_NAME).read_text()
    other = Definition(operations=[*DEFINITION.operations[:2], CenterCrop(size=(24, 24))])
    assert len(certify.install(other, folders)[1]) == 2


def test_what_dali_refuses_is_certified_as_unmeasured() -> None:
    twice = Resize(mode="exact", size=(9, 9)), Resize(mode="exact", size=(5, 5))
    seen = certify.issue(Definition(operations=[Decode(), *twice]))
    assert seen.stages == {}
    assert "one resize" in seen.unmeasured
    assert "pads to 8x8" in certify.issue(Definition(operations=[Decode(), Pad(size=(8, 8))])).unmeasured


def test_a_model_refuses_a_certificate_of_another_definition(folder: Path) -> None:
    other = Definition(operations=[*DEFINITION.operations[:3], Normalize(mean=(0, 0, 0), std=(1, 1, 1))])
    with pytest.raises(StampMismatch) as caught:
        certificate.check(folder, other, model="mine_model")
    for part in ("mine_model", DEFINITION.digest[:12], other.digest[:12], "onestream build"):
        assert part in str(caught.value)


def test_figures_versions_a_missing_file_and_damage_are_only_warnings(folder: Path) -> None:
    assert warnings(folder) == []
    stages = certificate.read(folder).model_dump()["stages"]
    edit(folder, stages=stages | {"resize": stages["resize"] | {"within": False}})
    assert "outside the tolerances: resize" in warnings(folder)[0]
    versions = {**certificate.library_versions(), "numpy": "1.0.0"}
    del versions["pillow"]
    edit(folder, versions=versions, stages=stages)
    (warning,) = warnings(folder)
    assert "numpy 1.0.0 (now 1." in warning
    assert "pillow none (now" in warning
    assert "dali" not in warning
    (folder / FILE_NAME).write_text("{")
    assert "no readable certificate.json" in warnings(folder)[0]
    (folder / FILE_NAME).unlink()
    assert "no readable certificate.json" in warnings(folder)[0]


def test_the_doctor_says_the_same(repository: Path) -> None:
    assert parity_check(repository).status == "ok"
    edit(repository / "mine_fused", versions={})
    check = parity_check(repository)
    assert check.status == "optional"
    assert "mine_fused" in check.found
    (repository / "mine_model" / FILE_NAME).unlink()
    assert "(and 1 more)" in parity_check(repository).found
    edit(repository / "mine", definition_digest="0" * 64)
    check = parity_check(repository)
    assert (check.status, check.fix) == ("problem", "onestream build pipelines/classify.yaml")
    assert "000000000000" in check.found
    assert parity_check(repository / "mine").status == "optional"
