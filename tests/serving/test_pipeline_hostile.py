"""Pipeline files that were made to harm their reader: one clear error each, soon and without memory."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onestream.preprocess.user_files import MAX_CHARACTERS, MAX_DEPTH, MAX_VALUES, BadYaml, read_plain_yaml
from onestream.serving.building.build import build
from onestream.serving.errors import BadPipeline
from onestream.serving.pipeline import Pipeline

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
CLASSIFY = (ROOT / "pipelines" / "classify.yaml").read_text()
LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "bytes that are no text": (b"name: \xff\xfe", "UTF-8"),
    "aliases of aliases": (LAUGHS, "aliases written out"),
    "merges of merges": (MERGES, "aliases written out"),
    "a list of itself": ("a: &a [*a]", "contains itself"),
    "a deep nest": ("a: " + "[" * 50_000, "nests more than"),
    "a deep nest of mappings": ("? " * 20_000 + "a", "nests more than"),
    "a huge file": ("# " + "x" * (1 << 26), "characters"),
    "many values": ("a: [" + "1," * 49_000 + "]", "values"),
    "many wrong fields": ("".join(f"field{n}: 1\n" for n in range(3000)), "more"),
    "a date that cannot be": ("name: 2024-99-99", "not YAML"),
    "a number that cannot be": ("name: " + "9" * 5000, "not YAML"),
    "a list as a key": ("? [a]\n: b", "not YAML"),
    "a number as a key": ("1: 2", "1"),
    "a Python object": ("a: !!python/object/apply:os.system [true]", "not YAML"),
    "an open bracket": ("a: [", "line 1"),
    "a control character": ("a: \x01", "not YAML"),
    "a directive of two versions": ("%YAML 1.1\n%YAML 1.2\n---\na", "not YAML"),
    "two documents": ("a: 1\n---\nb: 2", "not YAML"),
    "a long name": (f"name: {'n' * 300}\n" + CLASSIFY, "name"),
}
BUILD = "import sys; from onestream.cli.main import main; sys.argv = ['onestream', 'build', *sys.argv[1:]]; main()"


def bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pipeline_file_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, said = HOSTILE[name]
    file = tmp_path / "hostile.yaml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BadPipeline, match=said) as caught:
        Pipeline.from_file(file)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{file}: ")
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("/dev/zero", "a file"),
        ("nowhere.txt", "No such file"),
        ("'a\\0b'", "labels"),
        ("n" * 300, "too long"),
        ("bytes.txt", "UTF-8"),
    ],
)
def test_labels_that_cannot_be_read_are_refused(tmp_path: Path, labels: str, said: str) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"\xff" * 1000)
    file = tmp_path / "own.yaml"
    file.write_text(CLASSIFY.replace("labels: imagenet", f"labels: {labels}"))
    with pytest.raises(BadPipeline, match=said):
        build(file, folder=tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize("name", ["aliases of aliases", "merges of merges", "a deep nest"])
def test_the_command_says_one_line_and_exits_with_1(tmp_path: Path, name: str) -> None:
    file = tmp_path / "hostile.yaml"
    file.write_text(str(HOSTILE[name][0]))
    command = [sys.executable, "-c", BUILD, str(file), "--repository", str(tmp_path / "repository")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, preexec_fn=bounded)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("cannot build: ")
    assert not (tmp_path / "repository").exists()


def test_the_bounds_are_where_they_are_said_to_be() -> None:
    assert read_plain_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}
    assert len(read_plain_yaml("[" + "1," * (MAX_VALUES - 1) + "]")) == MAX_VALUES - 1
    nested = MAX_DEPTH - 1
    assert read_plain_yaml("[" * nested + "]" * nested)
    assert read_plain_yaml("a" * MAX_CHARACTERS)
    for beyond in ("[" + "1," * MAX_VALUES + "]", "[" * (nested + 1) + "]" * (nested + 1), "a" * (MAX_CHARACTERS + 1)):
        with pytest.raises(BadYaml):
            read_plain_yaml(beyond)


WORDS = ["a", "b", "1", "&a ", "*a", "<<", ": ", "- ", "!!int ", "!!timestamp ", "0x", "..."]
PIECES = st.sampled_from([*"[]{}:,-?&*!|>%@`'\"#~<= \n\t", *WORDS])


@given(text=st.one_of(st.lists(PIECES, max_size=30).map("".join), st.text(max_size=60)))
def test_no_text_raises_anything_else(text: str) -> None:
    with contextlib.suppress(BadYaml):
        assert repr(read_plain_yaml(text)) == repr(yaml.safe_load(text))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, len(CLASSIFY)), cut=st.integers(0, 30), new=st.text(max_size=12))
def test_no_damage_to_a_pipeline_file_raises_anything_else(tmp_path: Path, at: int, cut: int, new: str) -> None:
    file = tmp_path / "damaged.yaml"
    file.write_text(CLASSIFY[:at] + new + CLASSIFY[at + cut :], encoding="utf-8", errors="replace")
    with contextlib.suppress(BadPipeline):
        Pipeline.from_file(file)
