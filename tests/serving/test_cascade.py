"""A cascade's file: what is read, what is refused, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from onestream.preprocess import Definition
from onestream.serving.cascade import Cascade, read_file
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
FIND: dict[str, Any] = {
    "network": "ssdlite-mobilenet-v2",
    "preprocess": {"operations": [{"op": "decode"}, {"op": "resize", "mode": "exact", "size": [300, 300]}]},
    "postprocess": {"kind": "detection", "family": "ssd"},
}
NAME: dict[str, Any] = {
    "network": "efficientnet-lite0",
    "preprocess": {
        "operations": [{"op": "region", "of": "find"}, {"op": "resize", "mode": "exact", "size": [224, 224]}],
    },
}


BOTH = {"stages": {"find": FIND, "name": NAME}}
PATCHES = {
    "preprocess": {
        "operations": [{"op": "decode"}, {"op": "center_crop", "size": [56, 56]}, {"op": "patches", "patch": 14}]
    }
}


def of(stage: str, **fields: Any) -> dict[str, Any]:
    """``NAME`` of the regions of another stage."""
    first, *others = NAME["preprocess"]["operations"]
    return NAME | {"preprocess": {"operations": [first | {"of": stage} | fields, *others]}}


def write(tmp_path: Path, fields: dict[str, Any]) -> Path:
    path = tmp_path / "things.yaml"
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path


def test_stages_keep_their_order_and_become_pipelines(tmp_path: Path) -> None:
    cascade = read_file(write(tmp_path, BOTH | {"limits": {"max_regions": 7}, "serving": {"max_batch_size": 1}}))
    assert cascade.name == "things"
    assert list(cascade.pipelines) == ["find", "name"]
    find = cascade.pipelines["find"]
    assert find.name == "things_find"
    assert find.preprocess == Definition.model_validate(FIND["preprocess"])
    assert (find.limits.max_regions, find.serving.max_batch_size) == (7, 1)


def test_a_file_without_stages_is_a_pipeline(tmp_path: Path) -> None:
    assert isinstance(read_file(write(tmp_path, FIND)), Pipeline)
    with pytest.raises(BadPipeline, match="it has no stages"):
        Cascade.from_file(write(tmp_path, FIND))
    with pytest.raises(BadPipeline, match="it has stages, so it is a cascade"):
        Pipeline.from_file(write(tmp_path, BOTH))


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ({"find": FIND}, "two stages or more, got 1"),
        ({"find": FIND, "Name": NAME}, "a stage's name is like"),
        (
            {"name": NAME, "find": FIND},
            r"stages\.name: preprocess begins with region; the first stage takes the picture",
        ),
        (
            {"find": NAME | {"preprocess": FIND["preprocess"]}, "name": NAME},
            "postprocess classification finds no regions",
        ),
        (
            {"find": FIND | {"preprocess": {"operations": [{"op": "decode", "profile": "srgb"}]}}, "name": NAME},
            r"stages\.find: decode.profile is for a pipeline of one stage",
        ),
        ({"find": FIND | PATCHES, "name": NAME}, "ends in patches, .*; a served network takes output"),
        ({"find": FIND, "name": FIND}, r"stages\.name: preprocess begins with decode"),
        ({"look": FIND, "name": NAME}, "region.of is 'find'; expected an earlier stage: look"),
        (
            {"find": FIND, "name": NAME | {"postprocess": FIND["postprocess"]}},
            "postprocess detection does not work on regions",
        ),
        (
            BOTH["stages"] | {"more": {"preprocess": {"operations": [{"op": "region", "of": "name"}]}}},
            "region.of is 'name', which gives no regions: it ends in classification",
        ),
        (
            {"find": FIND | {"postprocess": {"kind": "text_lines"}}, "name": of("find", classes=[1])},
            r"stages\.name: region.classes are those of a detection, and stage find ends in text_lines",
        ),
    ],
)
def test_stages_that_do_not_follow_are_refused(tmp_path: Path, stages: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadPipeline, match=reason):
        read_file(write(tmp_path, {"stages": stages}))


def test_what_a_pipeline_alone_cannot_begin_or_end_with_is_refused(tmp_path: Path) -> None:
    for fields, reason in ((NAME, "preprocess begins with region"), (PATCHES, "ends in patches, .*; a served network")):
        with pytest.raises(BadPipeline, match=reason):
            read_file(write(tmp_path, fields))


@pytest.mark.parametrize(("serving", "batch"), [({}, 1), ({"max_queue_ms": 9}, 1), ({"max_batch_size": 8}, 8)], ids=str)
def test_pictures_come_one_by_one_unless_a_file_says_more(tmp_path: Path, serving: dict[str, Any], batch: int) -> None:
    cascade = read_file(write(tmp_path, BOTH | ({"serving": serving} if serving else {})))
    assert {one.serving.max_batch_size for one in (cascade, *cascade.pipelines.values())} == {batch}


def test_names_that_are_too_long_together_are_refused(tmp_path: Path) -> None:
    assert read_file(write(tmp_path, BOTH | {"name": "c" * 195})).name == "c" * 195
    with pytest.raises(BadPipeline, match=r"stages\.find: .*196 and 4 characters long.*at most 200"):
        read_file(write(tmp_path, BOTH | {"name": "c" * 196}))
