"""What the arguments of ``onestream bulk`` stand for, with real files, and files that lie."""

from __future__ import annotations

import gzip
import os
import subprocess
import tarfile
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from bulk_fakes import loaded, photos, read, shard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import onestream.measure.image_files as module
from onestream.cli.bulk import run
from onestream.cli.bulk.sources import counter, samples, tar_files
from onestream.client import UnreadableInput, images
from onestream.client.images import encode
from onestream.measure.image_files import ImageNames, expand
from onestream.preprocess.storage.files import expand_braces


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    path.write_bytes(shard(members, mode))
    return path


# ---- braces ---------------------------------------------------------------------------------------------------------


PIECES = st.one_of(
    st.sampled_from(["a", "shard-", ".tar", "{}", "{x}", "{", "}", "..", ",", "{1..}", "{,}", "{a,,b}"]),
    st.tuples(st.integers(-30, 30), st.integers(-30, 30), st.integers(0, 4)).map(
        lambda ends: f"{{{ends[0]:0{ends[2]}d}..{ends[1]:0{ends[2]}d}}}"
    ),
    st.lists(st.text("ab0-", max_size=3), min_size=2, max_size=3).map(lambda words: "{" + ",".join(words) + "}"),
)


def nests(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth not in (0, 1):
            return True
    return depth != 0


@pytest.fixture(scope="module")
def bash() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@given(st.lists(st.lists(PIECES, max_size=4).map("".join).filter(lambda text: not nests(text)), max_size=12))
def test_braces_are_those_of_bash(bash: subprocess.Popen[str], texts: list[str]) -> None:
    """Nested and unpaired braces aside, and letters as ends of a range, which shards do not have."""
    assert bash.stdin is not None
    assert bash.stdout is not None
    bash.stdin.writelines([*(f"printf '%s\\n' x{text}x\n" for text in texts), "echo end\n"])
    bash.stdin.flush()
    expected = [f"x{name}x" for text in texts for name in expand_braces(text)]
    assert expected == [line.rstrip("\n") for line in iter(bash.stdout.readline, "end\n")]


@pytest.mark.parametrize("text", [f"{{1..{'9' * 5000}}}", "{a,b}" * 2000])
def test_what_is_no_list_of_shards_stays_as_it_is(text: str) -> None:
    assert list(expand_braces(text)) == [text]


# ---- folders and files ----------------------------------------------------------------------------------------------


def test_a_folder_is_read_sorted_and_below(tmp_path: Path) -> None:
    folder = photos(
        tmp_path,
        {"b.jpg": b"1", "a/z.PNG": b"2", "a/b/c.webp": b"3", "a.jpg": b"4", "notes.txt": b"5", "x.tar": b"6"},
    )
    (folder / "circle").symlink_to(folder)
    (folder / "link.jpg").symlink_to(folder / "b.jpg")
    (folder / "nowhere.jpg").symlink_to(folder / "none.jpg")
    (folder / "itself.jpg").symlink_to("itself.jpg")
    (folder / "itself").symlink_to("itself")
    os.mkfifo(folder / "would wait for ever.jpg")
    found = {Path(path).relative_to(folder).as_posix(): data for path, _, data in read(folder)}
    assert list(found) == [
        *("a/b/c.webp", "a/z.PNG", "a.jpg", "b.jpg", "itself.jpg", "link.jpg", "nowhere.jpg", "would wait for ever.jpg")
    ]
    assert sorted(map(Path, found)) == [*map(Path, found)]
    bad = [name for name, data in found.items() if data == "UnreadableInput"]
    assert bad == ["itself.jpg", "nowhere.jpg", "would wait for ever.jpg"]


DEPTH = 1100
"""Of folders: more than Python calls itself."""


def test_folders_of_any_depth_lose_no_picture(tmp_path: Path) -> None:
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(DEPTH):
            os.mkdir("d")
            os.chdir("d")
        Path("deep.jpg").write_bytes(b"1")
        (tmp_path / "e.jpg").write_bytes(b"2")
        assert [data for _, _, data in read(tmp_path)] == [b"1", b"2"]
        assert len(expand([str(tmp_path)])) == 2
        assert [sample.path for sample in samples([f"{tmp_path}/**/*.gif"])] == [f"{tmp_path}/**/*.gif"]
        os.unlink("deep.jpg")
        for _ in range(DEPTH):
            os.chdir("..")
            os.rmdir("d")
    finally:
        os.chdir(here)


@pytest.mark.parametrize("name", ["a.jpg", "s.tar", "s.parquet"])
def test_a_pipe_into_which_nobody_writes_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(images, "PIPE_SILENCE_S", 0.05)
    monkeypatch.setattr(tar_files, "_PIPE_SILENCE_S", 0.05)
    os.mkfifo(tmp_path / name)

    def encoded() -> object:
        (sample,) = samples([str(tmp_path / name)])
        with run.opened(sample.load(1000)) as file:
            return encode(file, max_body_bytes=1000)

    with pytest.raises(UnreadableInput, match=r"gives nothing for 0.05 s|no regular file"):
        encoded()
    assert counter([str(tmp_path / name)], every_file=False) is None


def test_a_tar_comes_through_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s.tar")
    content = shard({"a.jpg": b"1", "b.jpg": b"2"}, "w:gz")
    writer = threading.Thread(target=lambda: (tmp_path / "s.tar").write_bytes(content))
    writer.start()
    assert [data for _, _, data in read(tmp_path / "s.tar")] == [b"1", b"2"]
    writer.join()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stems=st.dictionaries(st.text("abcé.- 01", max_size=6).map("n{}".format), st.sampled_from([".jpg", ".txt"])),
    at_once=st.integers(1, 5),
)
def test_blocks_of_names_are_the_whole_folder_in_order(
    stems: dict[str, str], at_once: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = sorted(stem + suffix for stem, suffix in stems.items())
    folder, names = photos(tmp_path_factory.mktemp("names"), dict.fromkeys(files, b"x")), ImageNames()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_NAMES_AT_ONCE", at_once)
        found = [Path(sample.path).name for sample in samples([str(folder)], names=names)]
        every = [Path(sample.path).name for sample in samples([str(folder)], names=ImageNames(every_file=True))]
    assert found == [name for name in files if name.endswith(".jpg")]
    assert every == files
    others = len(files) - len(found)
    assert names.passed_over.startswith(f"passed over {others} file" if others else "")
    assert bool(names.passed_over) == (others > 0)


def peak_bytes(source: Path) -> tuple[int, int]:
    """How many samples there are, and the most memory taken while all are loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_NAMES_AT_ONCE", 100)
        tracemalloc.start()
        try:
            count = 0
            for sample in samples([str(source)]):
                sample.load(1000)
                count += 1
            return count, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def test_a_folder_of_very_many_images_takes_bounded_memory(tmp_path: Path) -> None:
    original = photos(tmp_path, {"0.jpg": b"x"}) / "0.jpg"
    for number in range(1, 3000):
        os.link(original, tmp_path / f"{number}.jpg")
    count, peak = peak_bytes(tmp_path)
    assert count == 3000
    # Two blocks of 100 names take about 30 KB; 3000 take about 400 KB.
    assert peak < 150_000


def test_files_patterns_and_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path, {"b.jpg": b"1", "a.txt": b"2", "c{0..1}.jpg": b"3", "s0.jpg": b"4", "s1.jpg": b"5"})
    monkeypatch.chdir(tmp_path)
    assert [path for path, _, _ in read("b.jpg", "a.txt", "*.txt")] == ["b.jpg", "a.txt", "a.txt"]
    assert [path for path, _, _ in read("c{0..1}.jpg")] == ["c{0..1}.jpg"]
    assert [path for path, _, _ in read("s{0..1}.jpg")] == ["s0.jpg", "s1.jpg"]
    assert [path for path, _, _ in read("s?.jpg")] == ["s0.jpg", "s1.jpg"]
    (missing,) = samples(["none*.jpg"])
    assert (missing.path, missing.load(10)) == ("none*.jpg", "none*.jpg")


def test_what_is_passed_over_is_counted_and_the_first_are_named(tmp_path: Path) -> None:
    folder = photos(tmp_path / "p", dict.fromkeys(("a.gif", "b.jpg", "c/d.heic", "e\x1b[2J", "notes.txt"), b""))
    tar = write_tar(tmp_path / "s.tar", {"0.jpg": b"", "0.cls": b"", "1.json": b""})
    names = ImageNames()
    assert len(list(samples([str(folder), str(tar)], names=names))) == 2
    shown = [f"{folder}/a.gif", f"{folder}/c/d.heic", f"{folder}/e\x1b[2J"]
    assert names.passed_over == (
        f"passed over 6 files that are not named like an image: {shown[0]!r}, {shown[1]!r}, {shown[2]!r} and 3 more; "
        "a file that is named itself is tried"
    )
    assert "\x1b" not in names.passed_over
    names = ImageNames(every_file=True)
    assert len(list(samples([str(folder), str(tar)], names=names))) == 8
    assert names.passed_over == ""
    names = ImageNames()
    # What is named is tried, whatever it is called.
    assert len(list(samples([f"{folder}/a.gif", f"{folder}/n*"], names=names))) == 2
    assert names.passed_over == ""


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, scandir = photos(tmp_path, {"a/b.jpg": b"1", "c/d.jpg": b"2"}), os.scandir

    def failing(path: str) -> object:
        if path.endswith("a"):
            raise OSError(5, "Input/output error")
        return scandir(path)

    monkeypatch.setattr(module.os, "scandir", failing)
    assert [data for _, _, data in read(folder)] == ["UnreadableInput", b"2"]
    assert expand([str(folder)]) == [folder / "a", folder / "c" / "d.jpg"]


def test_a_list_of_files(tmp_path: Path) -> None:
    folder = photos(tmp_path, {"b.jpg": b"1", "with space.jpg": b"2"})
    tar = write_tar(folder / "s.tar", {"k.jpg": b"3"})
    listed = (f"{folder}/with space.jpg\n", "\n", f"{tar}\r\n", f"{folder}/b.jpg")
    assert [data for _, _, data in read("-", listed=listed)] == [b"2", b"3", b"1"]


def test_names_of_other_encodings_can_be_written(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    (tmp_path / name).write_bytes(b"1")
    ((path, _, data),) = read(tmp_path)
    assert path.endswith("caf\\udce9.jpg")
    assert path.encode()
    assert data == b"1"


def test_what_can_be_counted_beforehand() -> None:
    assert counter(["a.jpg", "folder", "s-{0..9}.tar"], every_file=False) is not None
    assert counter(["a.jpg", "-"], every_file=False) is None
    assert counter(["s.tar.gz"], every_file=False) is None
    assert counter(["s-{0..9}.TGZ"], every_file=False) is None


# ---- tar files ------------------------------------------------------------------------------------------------------

NAMES = st.lists(
    st.tuples(st.text("abé/.1", min_size=1, max_size=8), st.sampled_from([".jpg", ".JPEG", ".png", ".json", ""])),
    max_size=8,
)


@given(
    names=NAMES, sizes=st.lists(st.integers(0, 1500), min_size=8, max_size=8), kind=st.sampled_from(["", "gz", "xz"])
)
def test_members_are_read_in_their_order(
    names: list[tuple[str, str]], sizes: list[int], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("tar") / ("s.tar" + (f".{kind}" if kind else ""))
    members = {
        f"n{stem}n{suffix}": bytes([index]) * size
        for index, ((stem, suffix), size) in enumerate(zip(names, sizes, strict=False))
    }
    write_tar(path, members, f"w:{kind}")
    wanted = {name: data for name, data in members.items() if name.lower().endswith((".jpg", ".jpeg", ".png"))}
    found = read(path)
    assert [data for _, _, data in found] == list(wanted.values())
    assert [key for _, key, _ in found] == [name[: name.rindex(".")] for name in wanted]


def test_webdataset_keys_and_what_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("d", tarfile.DIRTYPE), ("d/link.jpg", tarfile.SYMTYPE), ("d/hard.jpg", tarfile.LNKTYPE)):
            header = tarfile.TarInfo(name)
            header.type, header.linkname = kind, "/etc/passwd"
            tar.addfile(header)
        for name in ("d/000.cls", "d/000.jpg", "../up.png"):
            tar.addfile(tarfile.TarInfo(name))
    assert [(key, data) for _, key, data in read(path)] == [("d/000", b""), ("../up", b"")]


@pytest.mark.parametrize("size", [-1, -512, -1024, -1536])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_that_leads_back_into_itself_ends(tmp_path: Path, size: int, mode: str) -> None:
    path = tmp_path / "s.tar"
    with tarfile.open(path, mode, format=tarfile.GNU_FORMAT) as tar:  # type: ignore[call-overload]
        for name in ("a.jpg", "b.jpg"):
            tar.addfile(tarfile.TarInfo(name))
        header = tarfile.TarInfo("back.jpg")
        header.size = size
        tar.addfile(header)
    assert [data for _, _, data in read(path)] == [b"", b"", "UnreadableInput"]


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", {"a.jpg": b"1", "large.jpg": bytes(20_000), "b.jpg": b"2"})
    assert [data for _, _, data in read(path)] == [b"1", "BadImage", b"2"]


def test_members_that_are_passed_over_are_not_loaded(tmp_path: Path) -> None:
    for name, mode in (("s.tar", "w"), ("s.tar.gz", "w:gz")):
        path = write_tar(tmp_path / name, {f"{n}.jpg": bytes([n]) * 1000 for n in range(20)}, mode)
        found = [loaded(sample) for index, sample in enumerate(samples([str(path)])) if index % 7 == 3]
        assert found == [bytes([n]) * 1000 for n in (3, 10, 17)]


def test_a_tar_of_any_size_takes_bounded_memory(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", {f"{n}.jpg": b"x" for n in range(2000)})
    count, peak = peak_bytes(path)
    assert count == 2000
    # 2000 members that are kept take more than 1 MB.
    assert peak < 400_000


def long_header(kind: bytes, size: int) -> bytes:
    """A header that declares so many bytes of names or attributes."""
    header = tarfile.TarInfo("././@header")
    header.type, header.size = kind, size
    return header.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_names_of_any_declared_size_take_bounded_memory(tmp_path: Path, kind: bytes, suffix: str) -> None:
    path, size = tmp_path / f"s.{suffix}", 8 << 20
    # Not compressed: what a few kilobytes unpack to is in memory at once.
    with gzip.open(path, "wb", compresslevel=0) if suffix.endswith("gz") else path.open("wb") as file:
        for name in ("a.jpg", "b.jpg"):
            file.write(shard({name: b"1"})[:1024])
            file.write(long_header(kind, size))
            if suffix.endswith("gz"):
                for _ in range(8):
                    file.write(bytes(1 << 20))
            else:
                file.seek(size, os.SEEK_CUR)
        file.write(shard({"c.jpg": b"3"}))
    tracemalloc.start()
    try:
        assert [data for _, _, data in read(path)] == [b"1", "UnreadableInput", b"1", "UnreadableInput", b"3"]
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_what_grows_when_it_is_unpacked_takes_bounded_memory(tmp_path: Path, kind: str) -> None:
    members = {"a.jpg": b"1", "large.bin": bytes(16 << 20), "b.jpg": b"2"}
    path = write_tar(tmp_path / f"s.tar.{kind}", members, f"w:{kind}")
    assert path.stat().st_size < 32_768
    tracemalloc.start()
    try:
        assert [data for _, _, data in read(path)] == [b"1", b"2"]
        # xz keeps the last 8 MiB.
        assert tracemalloc.get_traced_memory()[1] < 9 << 20
    finally:
        tracemalloc.stop()


def test_a_file_of_xz_gets_no_more_memory_than_others(tmp_path: Path) -> None:
    content = bytearray(shard({"a.jpg": b"1"}, "w:xz"))
    assert content[12:17] == b"\x02\x00\x21\x01\x16"
    # The header of the block says how much is kept: 2 GiB in the place of 8 MiB.
    content[16] = 38
    content[20:24] = zlib.crc32(content[12:20]).to_bytes(4, "little")
    (tmp_path / "s.tar.xz").write_bytes(content)
    assert read(tmp_path / "s.tar.xz", told=str) == [
        (str(tmp_path / "s.tar.xz"), "", f"{tmp_path}/s.tar.xz: the image cannot be read: Memory usage limit exceeded")
    ]


def test_a_sparse_map_without_an_end_is_not_read_whole(tmp_path: Path) -> None:
    header = tarfile.TarInfo("sparse.jpg")
    header.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[482] = 1  # more of the map follows
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    (tmp_path / "s.tar").write_bytes(
        shard({"a.jpg": b"1"})[:1024] + block + (b"1".rjust(12, b"0") * 42 + b"\x01" + bytes(7)) * 4000
    )
    assert [data for _, _, data in read(tmp_path / "s.tar")] == [b"1", "UnreadableInput"]


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_member_has_no_endless_row_of_headers(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "s.tar").write_bytes(shard({"a.jpg": b"1"})[:1024] + long_header(kind, 0) * 5000)
    assert [data for _, _, data in read(tmp_path / "s.tar")] == [b"1", "UnreadableInput"]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_that_was_cut_says_so_wherever_it_was(tmp_path: Path, mode: str) -> None:
    members = {f"{n}.jpg": bytes([n]) * 700 for n in range(3)}
    whole = write_tar(tmp_path / "whole.tar", members, mode).read_bytes()
    # Beyond the mark of the end there is only padding, which may be missing.
    end = 3 * 1536 + 512 if mode == "w" else len(whole) - 12
    cut = tmp_path / "cut.tar"
    for length in range(0, end, 97):
        cut.write_bytes(whole[:length])
        found = [data for _, _, data in read(cut)]
        whole_ones = [data for data in found if isinstance(data, bytes)]
        assert found[-1] == "UnreadableInput", length
        assert whole_ones == list(members.values())[: len(whole_ones)]


@given(st.data(), st.sampled_from(["", "gz", "bz2"]))
def test_damaged_tars_give_samples_or_errors_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(
        write_tar(
            folder / "s.tar", {"a.jpg": b"1" * 600, "é" * 120 + ".png": b"2", "b.jpg": b"3"}, f"w:{kind}"
        ).read_bytes()
    )
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = folder / "damaged.tar"
    damaged.write_bytes(content)
    for path, key, image in read(damaged):
        assert path == str(damaged)
        assert isinstance(image, bytes) or image in ("BadImage", "UnreadableInput")
        assert key.encode() is not None
