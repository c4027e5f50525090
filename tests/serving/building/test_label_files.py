"""Label files: what a served model would not load, the build refuses, and it serves the names that were written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from networks import mean_color
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.postprocess.kinds import labels_beside
from onestream.postprocess.labels import read_labels
from onestream.serving.building.named_files import labels_of
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import Pipeline

OPTIONS: dict[str, dict[str, Any]] = {
    "classification": {"labels": "names.txt"},
    "detection": {"family": "yolo", "labels": "names.txt"},
    "segmentation": {"labels": "names.txt"},
    "text": {"characters": "names.txt"},
}
OPERATIONS = [{"op": "decode"}, {"op": "resize", "mode": "exact", "size": [32, 32]}]


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize(
    "content",
    [
        *(b"a\nb\n", b"a\r\nb", b"a\rb\r", b"\xef\xbb\xbfa\n", "one\u2028\x0bline\n b \n".encode()),
        *(b"a\n\nc\n", b"a\n  \nc\n", b"", b"a\n\n", b"\n", "\u0153uf".encode("utf-16")),
    ],
)
def test_the_build_takes_what_the_model_loads(tmp_path: Path, kind: str, content: bytes) -> None:
    (tmp_path / "names.txt").write_bytes(content)
    fields = {"preprocess": {"operations": OPERATIONS}, "postprocess": {"kind": kind, **OPTIONS[kind]}}
    pipeline = Pipeline.model_validate({"name": "mine", **fields})
    try:
        names = read_labels(tmp_path / "names.txt", spaces=kind == "text")
    except ValueError as error:
        with pytest.raises(BadPipeline, match=re.escape(str(error))):
            labels_of(pipeline, tmp_path)
        return
    written = labels_of(pipeline, tmp_path)
    (tmp_path / "labels.txt").write_bytes(written.encode())
    assert labels_beside(pipeline.postprocess, tmp_path) == names


def test_the_command_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(mean_color().SerializeToString())
    (tmp_path / "names.txt").write_text("a\nb\n\nd\ne\nf\ng\n")
    postprocess = {"kind": "classification", "top_k": 3, "labels": "names.txt"}
    fields = {"preprocess": {"operations": OPERATIONS}, "postprocess": postprocess}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(fields))
    command = ["build", str(tmp_path / "mine.yaml"), "--onnx", str(tmp_path / "net.onnx")]
    done = CliRunner().invoke(app, [*command, f"--repository={tmp_path / 'models'}"])
    assert done.exit_code != 0
    assert "names.txt line 3 is empty; every class needs a name" in " ".join(done.output.split())
    assert not (tmp_path / "models").exists()
