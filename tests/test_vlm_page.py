"""The programs of docs/vlm.md, on the photos of the examples and a config as the hub has it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from pages import Shell, blocks, printed_by

from onestream.preprocess import Definition

ROOT = Path(__file__).parents[1]
CONFIG = {
    "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor",
}  # fmt: skip


@pytest.mark.slow
def test_the_page_says_what_its_programs_do(tmp_path: Path) -> None:
    for library in ("torch", "transformers"):
        pytest.importorskip(library)
    (tmp_path / "qwen").mkdir()
    (tmp_path / "qwen" / "preprocessor_config.json").write_text(json.dumps(CONFIG))
    shutil.copytree(ROOT / "examples" / "photos", tmp_path / "photos")
    command, compared = blocks("vlm.md", "bash")
    shell = Shell(tmp_path)
    shell.line(command)
    by_folder, by_definition = compared.replace(" photos ", " photos/cat.jpg ").splitlines()
    assert "Processor and transformers slow stay within the tolerances" in " ".join(shell.line(by_folder).split())
    shell.line(by_definition)
    assert json.loads((tmp_path / "vlm.json").read_text())["within"]
    (shown,) = blocks("vlm.md", "yaml")
    imported = Definition.from_yaml((tmp_path / "qwen.yaml").read_text())
    assert imported == Definition.model_validate(yaml.safe_load(shown))

    first, videos, tiles, second, _, last = blocks("vlm.md", "python")
    program = "\n".join((first, videos, tiles, second, last))
    expected = re.findall(r"print\(.*\)  # (.+)", program)
    assert len(expected) == 11
    assert printed_by(program, tmp_path) == expected
