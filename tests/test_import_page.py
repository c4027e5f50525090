"""docs/import.md says what the installed libraries compute."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from generators.import_page import page
from onestream.preprocess.interop.huggingface.families import FAMILIES

PAGE = Path(__file__).parents[1] / "docs" / "import.md"


@pytest.mark.slow
def test_the_committed_page_is_of_the_installed_libraries() -> None:
    for name in ("torchvision", "timm", "transformers"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m generators.import_page > docs/import.md"


def test_every_class_whose_rules_are_known_is_imported_somehow() -> None:
    """By its defaults, but those whose defaults are no size of a network, or no tiles; Qwen3-VL's has videos only."""
    rows = re.findall(r"^\| (equal|within|–) \| (?:equal|within|–) \| (.*) \|$", PAGE.read_text(), flags=re.MULTILINE)
    listed = {name for _, names in rows for name in names.split(", ")}
    assert FAMILIES.keys() - listed == {"LlavaNext", "MobileViT", "Qwen3VL", "Yolos"}
