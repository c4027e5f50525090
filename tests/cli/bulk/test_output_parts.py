"""Parts of the sources and the folder of their files: nothing is lost or there twice, and nothing is half there."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.cli.bulk.journal import JournalError
from onestream.cli.bulk.ray import folder as folder_module
from onestream.cli.bulk.ray.folder import ABOUT, COMPLETE, OutputFolder
from onestream.cli.bulk.ray.parts import Part, number_in, parts
from onestream.cli.bulk.sources import Unit

UNITS = st.lists(st.builds(Unit, st.text(min_size=1), st.booleans()), max_size=30)


@given(UNITS, st.integers(1, 7))
def test_parts_hold_every_unit_once_and_in_order(units: list[Unit], most: int) -> None:
    found = list(parts(units, most_files=most))
    assert [unit for part in found for unit in part.units] == units
    assert [part.number for part in found] == list(range(len(found)))
    for part in found:
        assert 1 <= len(part.units) <= most
        assert len(part.units) == 1 or not any(unit.holds_many for unit in part.units)


def test_few_files_are_many_parts_and_many_files_are_large_ones() -> None:
    units = (Unit(str(number), False) for number in range(100_000))
    sizes = [len(part.units) for part in parts(units, most_files=1000)]
    assert sizes[:17] == [8] * 16 + [16]
    assert max(sizes) == sizes[-2] == 1000
    assert len(sizes) < 220


def test_the_name_of_a_part_follows_from_what_is_in_it() -> None:
    one, same = (Part(12, (Unit("a.jpg"), Unit("b.jpg"))) for _ in range(2))
    assert one.file_name("parquet") == same.file_name("parquet")
    assert number_in(one.file_name("parquet")) == number_in(one.file_name("jsonl")) == 12
    others = (Part(12, (Unit("b.jpg"), Unit("a.jpg"))), Part(12, (Unit("a.jpg"),)), Part(12, (Unit("a.jpgb.jpg"),)))
    assert one.file_name("parquet") not in [other.file_name("parquet") for other in others]
    for name in (ABOUT, COMPLETE, ".part-00000001-0123456789abcdef.parquet.x.tmp"):
        assert number_in(name) is None


@pytest.fixture(params=["local", "file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder of this machine, the same as an address, and one of a file system that fsspec brings."""
    name = uuid.uuid4().hex
    places = {"local": f"{tmp_path}/{name}", "file": f"file://{tmp_path}/{name}", "memory": f"memory://{name}"}
    return places[request.param]


def test_a_run_goes_on_and_is_refused_when_it_is_another_or_complete(place: str) -> None:
    out, part = OutputFolder(place), "part-00000000-0123456789abcdef.parquet"
    out.begin({"sources": ["photos"], "top": 1}, anew=False)
    out.write(part, b"rows")
    again = OutputFolder(place + "/")
    again.begin({"sources": ["photos"], "top": 1}, anew=False)
    assert again.names() == {ABOUT, part}
    assert again.read(part) == b"rows"
    with pytest.raises(JournalError, match=r"belongs to another run: \{'top': 1\}, now \{'top': 2\}"):
        again.begin({"sources": ["photos"], "top": 2}, anew=False)
    again.finish({"images": 4})
    assert json.loads(again.read(COMPLETE)) == {"images": 4}
    with pytest.raises(FileExistsError, match="complete already; --overwrite begins anew"):
        again.begin({"sources": ["photos"], "top": 1}, anew=False)
    again.begin({"sources": ["photos"], "top": 2}, anew=True)
    assert again.names() == {ABOUT}


def test_a_folder_in_which_a_run_is_at_work_is_no_other_s(tmp_path: Path) -> None:
    out = OutputFolder(str(tmp_path / "out"))
    with out.held():
        out.begin({}, anew=False)
        with pytest.raises(JournalError, match=r"another run writes \S+/out"), OutputFolder(out.place).held():
            pytest.fail("two runs were let in")
    with OutputFolder(out.place).held():
        pass


def test_a_run_is_told_that_another_began_anew_in_its_place(place: str) -> None:
    first, second = OutputFolder(place), OutputFolder(place)
    first.begin({}, anew=False)
    first.check_run()
    second.begin({}, anew=True)
    second.check_run()
    with pytest.raises(JournalError, match=r"the _run\.json there is of another run"):
        first.check_run()


def test_overwrite_leaves_what_is_not_its_own_and_parts_of_no_known_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    out = OutputFolder(str(tmp_path))
    for anew in (False, True):
        out.begin({}, anew=anew)
        assert out.names() == {"notes.txt", ABOUT}
    (tmp_path / ABOUT).rename(tmp_path / "part-00000000-0123456789abcdef.parquet")
    with pytest.raises(JournalError, match=r"has parts of a run and no _run\.json"):
        out.begin({}, anew=False)


@pytest.mark.parametrize(("owner", "function"), [(Path, "write_bytes"), (folder_module, "replace_durably")])
def test_a_file_that_cannot_be_written_whole_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, function: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    out = OutputFolder(str(tmp_path / "out"))
    out.begin({}, anew=False)
    monkeypatch.setattr(owner, function, full)
    with pytest.raises(OSError, match="No space left"):
        out.write("part-00000000-0123456789abcdef.parquet", b"rows")
    assert os.listdir(tmp_path / "out") == [ABOUT]
