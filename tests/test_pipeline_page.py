"""docs/pipeline.md says what the models accept."""

from __future__ import annotations

from pathlib import Path

from generators.pipeline_page import page
from onestream.serving.pipeline import Pipeline

LIKE_DETECTION = ("InstanceMasks", "Keypoints", "OrientedBoxes")
PAGE = Path(__file__).parents[1] / "docs" / "pipeline.md"


def test_the_committed_page_is_of_todays_models() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m generators.pipeline_page > docs/pipeline.md"


def test_every_section_and_field_of_the_models_is_on_the_page() -> None:
    text = page()
    schema = Pipeline.model_json_schema()
    told = 0
    for model in [schema, *schema["$defs"].values()]:
        for name in model["properties"].keys() - {"op", "kind"}:
            assert f"\n| `{name}` |" in text, name
            told += 1
    for row in ("| `stages` |", "| `precision` of a stage |"):
        assert f"\n{row}" in text
    detection, *like = (schema["$defs"][name]["properties"] for name in ("Detection", *LIKE_DETECTION))
    once = sum(one.get(name) == field for one in like for name, field in detection.items())
    assert once > 5, "the page has one row for the same field of both"
    assert text.count("\n| `") == told + 2 - once
