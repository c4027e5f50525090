"""Options are written into a pipeline file, and nothing else in it changes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from onestream.measure.tune.knobs import Value
from onestream.measure.tune.pipeline_file import CannotEdit, edited, read_text, replace_text

CLASSIFY = (Path(__file__).parents[3] / "pipelines" / "classify.yaml").read_text(encoding="utf-8")
HEAD = "# Mine.\nnetwork: efficientnet-lite0\npreprocess:\n    operations:   # in order\n    - {op: decode}\n\n"


@pytest.mark.parametrize(
    ("serving", "expected"),
    [
        # What is merged gets a value of its own.
        (
            "base: &base {max_batch_size: 4}\nserving:\n  <<: *base\n  cpu_threads: 1\n",
            "base: &base {max_batch_size: 4}\nserving:\n  <<: *base\n  cpu_threads: 1\n"
            "  max_batch_size: 2\n  cpu_instances: cores\n",
        ),
        ("serving: {max_batch_size: 4}\n", "serving: {max_batch_size: 2, cpu_instances: cores}\n"),
        ("serving: {  }  # none\n", "serving: {max_batch_size: 2, cpu_instances: cores  }  # none\n"),
        ("serving: { max_batch_size: 4, }\n", "serving: { max_batch_size: 2,cpu_instances: cores }\n"),
        (
            "serving:\n      # why\n      max_batch_size: 4   # few\n      # the end\nlimits: {}\n",
            "serving:\n      # why\n      max_batch_size: 2   # few\n      cpu_instances: cores\n      # the end\n"
            "limits: {}\n",
        ),
        (
            "serving:\n  gpu:\n    decode: gpu # there\n\n# far\n",
            "serving:\n  gpu:\n    decode: gpu # there\n  max_batch_size: 2\n  cpu_instances: cores\n\n# far\n",
        ),
        ("serving:\n  max_batch_size: '4'", "serving:\n  max_batch_size: 2\n  cpu_instances: cores"),
        ("", "\nserving:\n  max_batch_size: 2\n  cpu_instances: cores\n"),
    ],
)
def test_every_way_to_write_the_section(serving: str, expected: str) -> None:
    changes: dict[str, Value] = {"max_batch_size": 2, "cpu_instances": "cores"}
    assert edited(HEAD + serving, changes) == HEAD + expected


def test_a_field_of_gpu_makes_its_section_and_line_ends_and_braces_stay() -> None:
    new = edited(HEAD, {"gpu.decode": "cpu", "gpu.backend": "dali"})
    assert new == HEAD + "\nserving:\n  gpu:\n    decode: cpu\n    backend: dali\n"
    assert edited(HEAD + "serving: {}", {"gpu.decode": "cpu"}) == HEAD + "serving: {gpu: {decode: cpu}}"
    new = edited(CLASSIFY.replace("\n", "\r\n"), {"max_batch_size": 2, "cpu_instances": 3})
    assert new == edited(CLASSIFY, {"max_batch_size": 2, "cpu_instances": 3}).replace("\n", "\r\n")
    text = '{"preprocess": {"operations": []},\n "name": "a"}\n'
    expected = yaml.safe_load(text) | {"serving": {"max_batch_size": 2}}
    assert yaml.safe_load(edited(text, {"max_batch_size": 2})) == expected


@pytest.mark.parametrize(
    "serving",
    [
        "defaults: &d {max_batch_size: 4}\nserving: *d\n",
        "few: &few 4\nserving:\n  max_batch_size: *few\n",
        "serving:\n  max_batch_size: &few 4\nlimits: {max_pixels: *few}\n",
        "serving: {max_queue_ms: 5 # why\n  }\n",
        "limits: {}\n...\n",
    ],
)
def test_what_cannot_be_changed_for_sure_is_refused_with_what_to_write(serving: str) -> None:
    with pytest.raises(CannotEdit, match=r"serving\.max_batch_size: 2; serving\.cpu_instances: cores"):
        edited(HEAD + serving, {"max_batch_size": 2, "cpu_instances": "cores"})


FIELDS = {
    "max_batch_size": st.integers(1, 1024),
    "cpu_instances": st.one_of(st.just("cores"), st.integers(1, 64)),
    "cpu_threads": st.integers(1, 64),
    "gpu.decode": st.sampled_from(["gpu", "hybrid", "cpu"]),
    "gpu.max_batch_size": st.integers(1, 1024),
}
CHANGES = st.fixed_dictionaries({}, optional=FIELDS)
COMMENT = st.sampled_from(["", "  # few", "  # ä 🙂", "   "])
BETWEEN = st.sampled_from(["", "\n", "# a line\n", "  # indented: not a key\n", "\n\n# two\n"])


@st.composite
def files(draw: st.DrawFn) -> str:
    """Pipeline files with comments everywhere and the section in any style, at any place."""
    before = draw(CHANGES)
    indent = " " * draw(st.integers(1, 6))
    gpu = {field.removeprefix("gpu."): value for field, value in before.items() if "." in field}
    plain = {field: value for field, value in before.items() if "." not in field}
    style = draw(st.sampled_from(["block", "flow"]))
    if not before:
        section = ""
    elif style == "flow":
        section = f"serving: {{{', '.join(f'{k}: {v}' for k, v in plain.items())}}}" + draw(COMMENT) + "\n"
    else:
        lines = [f"{indent}{field}: {value}{draw(COMMENT)}\n{draw(BETWEEN)}" for field, value in plain.items()]
        if gpu:
            inner = [f"{indent}  {field}: {value}{draw(COMMENT)}\n" for field, value in gpu.items()]
            lines.insert(draw(st.integers(0, len(lines))), f"{indent}gpu:{draw(COMMENT)}\n" + "".join(inner))
        section = f"serving:{draw(COMMENT)}\n{draw(BETWEEN)}" + "".join(lines)
    parts = [f"network: a{draw(COMMENT)}\n{draw(BETWEEN)}", f"limits: {{max_pixels: 5}}{draw(COMMENT)}\n", section]
    return draw(BETWEEN) + "".join(draw(st.permutations(parts)))


@given(text=files(), changes=CHANGES)
def test_only_the_fields_change_and_every_comment_stays(text: str, changes: dict[str, Value]) -> None:
    new = edited(text, changes)
    before, after = yaml.safe_load(text), yaml.safe_load(new)
    serving = after.pop("serving", {})
    expected = before.pop("serving", {})
    assert after == before
    for field, value in changes.items():
        target = expected
        *parents, last = field.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    assert serving == expected
    # What was removed are values at most: every line is still there, in order, up to its value.
    remaining = iter(new.splitlines())
    for line in text.splitlines():
        key, _, rest = line.partition(": ")
        comment = rest[rest.index("#") :] if "#" in rest else ""
        assert any(other.startswith(key) and other.endswith(comment) for other in remaining), line


def test_a_file_is_replaced_at_once_with_its_mode_and_through_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    target.write_bytes(b"a: 1\r\n")
    target.chmod(0o640)
    link.symlink_to(target)
    replace_text(link, read_text(link).replace("1", "2"))
    assert target.read_bytes() == b"a: 2\r\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "real.yaml"]
