"""Paths of many files: a sequence as any other, in the order of pathlib, in a tenth of the memory of ``Path``."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.preprocess import BadDataset
from onestream.preprocess.storage.files import files_named
from onestream.preprocess.training.sources.paths import Paths, files_below

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1).filter(lambda one: one not in "..")


@given(names=st.lists(st.lists(NAMES, min_size=1, max_size=3).map("/".join)), data=st.data())
def test_paths_are_a_sequence(names: list[str], data: st.DataObject) -> None:
    paths, expected = Paths(names), [Path(name) for name in names]
    assert len(paths) == len(names)
    assert list(paths) == list(pickle.loads(pickle.dumps(paths))) == expected
    assert [paths.name(index) for index in range(len(names))] == names
    part = data.draw(st.slices(len(names)))
    assert list(paths[part]) == expected[part]
    for index in range(-len(names), len(names)):
        assert paths[index] == expected[index]
    for outside in (len(names), -len(names) - 1):
        with pytest.raises(IndexError):
            paths[outside]


def test_names_that_are_no_text_are_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff.jpg")
    (tmp_path / name).touch()
    (path,) = Paths(files_below(tmp_path, (".jpg",)))
    assert path == tmp_path / name
    with pytest.raises(BadDataset, match=r"a path holds the character 0: 'a\\x00b'"):
        Paths(["a\0b"])


def test_files_come_in_the_order_of_pathlib(tmp_path: Path) -> None:
    for name in ("b/1.jpg", "b/10.JPG", "b-c/2.jpg", "b.jpg", "a/x/3.png", "a/x.jpg", "a/notes.txt", "Z/.hidden/4.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "a" / "link.jpg").symlink_to(tmp_path / "b.jpg")
    (tmp_path / "a" / "broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    expected = sorted(one for one in tmp_path.rglob("*") if one.suffix.lower() in (".jpg", ".png") and one.is_file())
    assert list(Paths(files_below(tmp_path, (".jpg", ".png")))) == expected
    assert len(expected) == 8
    with pytest.raises(BadDataset, match="nowhere cannot be read: No such file"):
        list(files_below(tmp_path / "nowhere", (".jpg",)))


def test_names_stand_for_others_by_stars_and_braces_alone(tmp_path: Path) -> None:
    """A folder with brackets in its name is not the one that ``glob`` would take for it."""
    for name in ("run1/0.tar", "run[1]/0.tar", "run[1]/1.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    expected = [f"{tmp_path}/run[1]/{number}.tar" for number in range(2)]
    for pattern in ("run[1]/*.tar", "run[1]/{0..1}.tar", "run[1]/{0,*1}.tar"):
        assert files_named(tmp_path / pattern) == expected
    assert files_named(tmp_path / "run?/0.tar") == [f"{tmp_path}/run?/0.tar"]
