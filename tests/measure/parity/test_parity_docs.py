"""The commands of docs/parity.md run, and its examples are today's output."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from builds import build
from clip_files import write_video
from typer.testing import CliRunner

from onestream.cli.main import app
from onestream.serving.server.server import Server

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
PATCHES = TEXT[TEXT.index("## Patches") : TEXT.index("## Cascades")]
"""``test_docs`` runs these commands."""
BLOCKS = re.findall(r"^```bash\n(.*?)^```", TEXT.replace(PATCHES, ""), flags=re.MULTILINE | re.DOTALL)
PHOTOS = "examples/photos/*.jpg"
# Rows that judge, counts, and what became of a photo's object or region: names alone, as scores and the figures of a
# network move with ONNX Runtime's version and machine, and those of pixels do not.
FIGURES = [
    r"^  (?:decode|region|resize|crop|normalize) .*within *$",
    r"^  (?:boxes|regions) (?:lost|added) +\d+|^  other answer +\d+",
    r": \w+\.jpg(?:, region \d+)?: [a-z ]+?(?: [\d.]+)? → [a-z ]+?(?: [\d.]+)?$",
]

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]


def figures(text: str) -> list[list[str]]:
    found = [re.findall(pattern, text, re.MULTILINE) for pattern in FIGURES]
    return [[" ".join(re.sub(r"( \d\.\d+)(?= →|$)", "", row).split()) for row in rows] for rows in found]


@pytest.fixture
def printed(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[str]]:
    monkeypatch.chdir(ROOT)
    build(ROOT / "pipelines" / "nanodet.yaml", folder=tmp_path)
    clip = write_video(tmp_path / "clip.mp4", "libx264", count=10)
    photos = sorted(map(str, Path().glob(PHOTOS)))
    places = {"127.0.0.1:8001": server.grpc_address, "clip.mp4": str(clip)}
    places["parity.json"] = str(tmp_path / "parity.json")
    outputs: dict[int, list[str]] = {}
    for number, block in enumerate(BLOCKS):
        repository = [] if number in (0, 2) else ["--repository", str(tmp_path)]
        for line in block.splitlines():
            words = [places.get(word, word) for word in shlex.split(line, comments=True)[1:]]
            if "--serve" in words:
                continue
            arguments = [one for word in words for one in (photos if word == PHOTOS else [word])]
            result = CliRunner().invoke(app, [*arguments, *repository], env={"COLUMNS": "80"})
            assert result.exit_code == 0, result.output
            outputs.setdefault(number, []).append(result.stdout)
    assert (tmp_path / "parity.json").exists()
    return outputs


def test_the_commands_run_and_the_examples_are_their_output(printed: dict[int, list[str]]) -> None:
    photos, boxes, clips, cascade = printed.values()
    assert len(photos) == 3
    shown, now = figures(TEXT[: TEXT.index(BLOCKS[1])])[0], figures(photos[2])[0]
    assert shown == now != []
    assert figures(TEXT[TEXT.index(BLOCKS[1]) : TEXT.index(PATCHES)]) == figures(boxes[0])
    shown = TEXT[TEXT.index("sort_classify, definition") : TEXT.index("| region | what is cut")]
    assert figures(shown) == figures(cascade[-1][cascade[-1].index("sort_classify, definition") :])
    assert all(figures(boxes[0]))
    assert all(figures(shown))
    assert ["classify_video" in text for text in clips] == [False, True]
    assert "loader: pyav (cpu)" in clips[0]
