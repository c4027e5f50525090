"""What is said of a YAML whose fields are none, or are not those that there are."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from onestream.preprocess import Definition
from onestream.preprocess.training.augmentation import Augmentation
from onestream.preprocess.user_files import BadYaml, describe, read_plain_yaml
from onestream.serving.cascade import Cascade
from onestream.serving.pipeline import Pipeline


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (Definition, "operation: []", "operation: no such field (did you mean operations? allowed: operations)"),
        (Definition, "operations: [{op: pda}]", "operations.0: no op 'pda' (did you mean pad? allowed: decode"),
        (Pipeline, "video: {samplin: {}}", "video.samplin: no such field (did you mean sampling? allowed: sampling, "),
        (Pipeline, "postprocess: {kind: raw, zzz: 1}", "postprocess.raw.zzz: no such field (allowed: kind)"),
        (Cascade, "stages: {find: {netwerk: a}}", "stages.find.netwerk: no such field (did you mean network? allowed:"),
        (Augmentation, "operations: [{op: warp, spacin: 1}]", "warp.spacin: no such field (did you mean spacing"),
    ],
)
def test_an_unknown_field_comes_with_the_nearest_and_those_that_are_allowed(
    kind: type[BaseModel], text: str, said: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(read_plain_yaml(text))
    assert said in describe(caught.value, kind)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_a_yaml_that_holds_nothing_is_called_empty(text: str) -> None:
    with pytest.raises(BadYaml, match="it is empty"):
        read_plain_yaml(text)
