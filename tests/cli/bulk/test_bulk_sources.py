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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bulk_fakes import loaded, photos, read, shard
from hypothesis import given
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


def bytes_of(*sources: object, **options: Any) -> list[bytes | str]:
    """What ``read`` has of each sample."""
    return [data for _, _, data in read(*sources, **options)]


@contextmanager
def at_most(peak_bytes: int) -> Iterator[None]:
    """What is done takes less memory than that at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < peak_bytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("s-{8..10}.tar", ["s-8.tar", "s-9.tar", "s-10.tar"]),
        ("{08..10}{a,b,}", ["08a", "08b", "08", "09a", "09b", "09", "10a", "10b", "10"]),
        ("{1..-1}", ["1", "0", "-1"]),
        *((text, [text]) for text in ("a", "{}", "{x}", "{", "a}{", "{1..}", f"{{1..{'9' * 5000}}}", "{a,b}" * 2000)),
    ],
)
def test_braces_are_those_of_bash_and_what_is_no_list_of_shards_stays_as_it_is(text: str, names: list[str]) -> None:
    assert list(expand_braces(text)) == names


# ---- folders and files ----------------------------------------------------------------------------------------------


def test_a_folder_is_read_sorted_and_below(tmp_path: Path) -> None:
    files = {"b.jpg": b"1", "a/z.PNG": b"2", "a/b/c.webp": b"3", "a.jpg": b"4", "notes.txt": b"5", "x.tar": b"6"}
    folder = photos(tmp_path, files)
    links = {"circle": folder, "link.jpg": folder / "b.jpg", "nowhere.jpg": folder / "none.jpg"}
    for name, target in (links | {"itself.jpg": "itself.jpg", "itself": "itself"}).items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "would wait for ever.jpg")
    found = {Path(path).relative_to(folder).as_posix(): data for path, _, data in read(folder)}
    pictures = {"a/b/c.webp": b"3", "a/z.PNG": b"2", "a.jpg": b"4", "b.jpg": b"1", "link.jpg": b"1"}
    no_files = ("itself.jpg", "nowhere.jpg", "would wait for ever.jpg")
    assert found == pictures | dict.fromkeys(no_files, "UnreadableInput")
    assert [*found] == [path.as_posix() for path in sorted(map(Path, found))]


def test_folders_of_any_depth_lose_no_picture(tmp_path: Path) -> None:
    """Also where there are more than Python calls itself, so that it can neither make nor remove them."""
    deep = f"{tmp_path}/{'d/' * 1100}"
    subprocess.run(["mkdir", "-p", deep], check=True)
    Path(deep, "deep.jpg").write_bytes(b"1")
    (tmp_path / "e.jpg").write_bytes(b"2")
    assert bytes_of(tmp_path) == [b"1", b"2"]
    assert len(expand([str(tmp_path)])) == 2
    assert [sample.path for sample in samples([f"{tmp_path}/**/*.gif"])] == [f"{tmp_path}/**/*.gif"]
    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)


@pytest.mark.parametrize("name", ["a.jpg", "s.tar", "s.parquet"])
def test_a_pipe_that_nobody_writes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
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
    assert bytes_of(tmp_path / "s.tar") == [b"1", b"2"]
    writer.join()


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 8, 9])
def test_blocks_of_names_are_the_folder_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(module, "_NAMES_AT_ONCE", at_once)
    files = sorted(["n .jpg", "n-.jpg", "n.jpg", "n.txt", "n0.jpg", "na.txt", "nb.jpg", "né.jpg", "néé.txt"])
    folder, names = photos(tmp_path, dict.fromkeys(files, b"x")), ImageNames()
    found = [Path(sample.path).name for sample in samples([str(folder)], names=names)]
    assert found == [name for name in files if name.endswith(".jpg")]
    assert names.passed_over.startswith("passed over 3 files")
    every = samples([str(folder)], names=ImageNames(every_file=True))
    assert [Path(sample.path).name for sample in every] == files


def test_very_many_images_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_NAMES_AT_ONCE", 100)
    folder = photos(tmp_path / "photos", {"0.jpg": b"x"})
    for number in range(1, 3000):
        os.link(folder / "0.jpg", folder / f"{number}.jpg")
    tar = write_tar(tmp_path / "s.tar", {f"{n}.jpg": b"x" for n in range(2000)})
    # Two blocks of 100 names take about 30 KB, 3000 about 400 KB; 2000 members that are kept take more than 1 MB.
    for source, count, peak_bytes in ((folder, 3000, 150_000), (tar, 2000, 400_000)):
        with at_most(peak_bytes):
            assert sum(sample.load(1000) is not None for sample in samples([str(source)])) == count


def test_files_patterns_lists_and_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"b.jpg": b"1", "a.txt": b"2", "c{0..1}.jpg": b"3", "s0.jpg": b"4", "s1.jpg": b"5", "d e.jpg": b"6"}
    photos(tmp_path, files)
    write_tar(tmp_path / "s.tar", {"k.jpg": b"7"})
    monkeypatch.chdir(tmp_path)
    for sources, expected in (
        (("b.jpg", "a.txt", "*.txt"), ["b.jpg", "a.txt", "a.txt"]),
        (("c{0..1}.jpg",), ["c{0..1}.jpg"]),
        (("s{0..1}.jpg",), ["s0.jpg", "s1.jpg"]),
        (("s?.jpg",), ["s0.jpg", "s1.jpg"]),
    ):
        assert [path for path, _, _ in read(*sources)] == expected
    (missing,) = samples(["none*.jpg"])
    assert (missing.path, missing.load(10)) == ("none*.jpg", "none*.jpg")
    assert bytes_of("-", listed=("d e.jpg\n", "\n", "s.tar\r\n", "b.jpg")) == [b"6", b"7", b"1"]


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, scandir = photos(tmp_path, {"a/b.jpg": b"1", "c/d.jpg": b"2"}), os.scandir

    def failing(path: str) -> object:
        if path.endswith("a"):
            raise OSError(5, "Input/output error")
        return scandir(path)

    monkeypatch.setattr(module.os, "scandir", failing)
    assert bytes_of(folder) == ["UnreadableInput", b"2"]
    assert expand([str(folder)]) == [folder / "a", folder / "c" / "d.jpg"]


def test_names_of_other_encodings_can_be_written(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"1")
    assert read(tmp_path) == [(f"{tmp_path}/caf\\udce9.jpg", "", b"1")]


def test_what_can_be_counted_beforehand() -> None:
    assert counter(["a.jpg", "folder", "s-{0..9}.tar"], every_file=False) is not None
    for source in ("-", "s.tar.gz", "s-{0..9}.TGZ"):
        assert counter(["a.jpg", source], every_file=False) is None


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
    assert [(key, data) for _, key, data in read(path, most=1000)] == [
        (name[: name.rindex(".")], data if len(data) <= 1000 else "BadImage")
        for name, data in members.items()
        if name.lower().endswith((".jpg", ".jpeg", ".png"))
    ]


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
    assert bytes_of(path) == [b"", b"", "UnreadableInput"]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_members_that_are_passed_over_are_not_loaded(tmp_path: Path, mode: str) -> None:
    path = write_tar(tmp_path / "s.tar", {f"{n}.jpg": bytes([n]) * 1000 for n in range(20)}, mode)
    found = [loaded(sample) for index, sample in enumerate(samples([str(path)])) if index % 7 == 3]
    assert found == [bytes([n]) * 1000 for n in (3, 10, 17)]


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
    with at_most(3 << 20):
        assert bytes_of(path) == [b"1", "UnreadableInput", b"1", "UnreadableInput", b"3"]


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_what_grows_when_it_is_unpacked_takes_bounded_memory(tmp_path: Path, kind: str) -> None:
    members = {"a.jpg": b"1", "large.bin": bytes(16 << 20), "b.jpg": b"2"}
    path = write_tar(tmp_path / f"s.tar.{kind}", members, f"w:{kind}")
    assert path.stat().st_size < 32_768
    # xz keeps the last 8 MiB.
    with at_most(9 << 20):
        assert bytes_of(path) == [b"1", b"2"]


def test_a_file_of_xz_gets_no_more_memory_than_others(tmp_path: Path) -> None:
    content = bytearray(shard({"a.jpg": b"1"}, "w:xz"))
    assert content[12:17] == b"\x02\x00\x21\x01\x16"
    # The header of the block says how much is kept: 2 GiB in the place of 8 MiB.
    content[16] = 38
    content[20:24] = zlib.crc32(content[12:20]).to_bytes(4, "little")
    path = tmp_path / "s.tar.xz"
    path.write_bytes(content)
    expected = f"{path}: the image cannot be read: Memory usage limit exceeded"
    assert read(path, told=str) == [(str(path), "", expected)]


def endless_sparse_map() -> bytes:
    header = tarfile.TarInfo("sparse.jpg")
    header.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[482] = 1  # more of the map follows
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return block + (b"1".rjust(12, b"0") * 42 + b"\x01" + bytes(7)) * 4000


def test_a_member_has_no_endless_row_of_headers(tmp_path: Path) -> None:
    rows = [long_header(kind, 0) * 5000 for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)]
    for headers in (*rows, endless_sparse_map()):
        (tmp_path / "s.tar").write_bytes(shard({"a.jpg": b"1"})[:1024] + headers)
        assert bytes_of(tmp_path / "s.tar") == [b"1", "UnreadableInput"]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_that_was_cut_says_so_wherever_it_was(tmp_path: Path, mode: str) -> None:
    members = {f"{n}.jpg": bytes([n]) * 700 for n in range(3)}
    whole = write_tar(tmp_path / "whole.tar", members, mode).read_bytes()
    # Beyond the mark of the end there is only padding, which may be missing.
    end = 3 * 1536 + 512 if mode == "w" else len(whole) - 12
    cut = tmp_path / "cut.tar"
    for length in range(0, end, 97):
        cut.write_bytes(whole[:length])
        found = bytes_of(cut)
        whole_ones = [data for data in found if isinstance(data, bytes)]
        assert found[-1] == "UnreadableInput", length
        assert whole_ones == list(members.values())[: len(whole_ones)]


@given(st.data(), st.sampled_from(["", "gz", "bz2"]))
def test_damaged_tars_give_samples_or_errors_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    damaged = tmp_path_factory.mktemp("damaged") / "s.tar"
    content = bytearray(shard({"a.jpg": b"1" * 600, "é" * 120 + ".png": b"2", "b.jpg": b"3"}, f"w:{kind}"))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged.write_bytes(content)
    for path, key, image in read(damaged):
        assert path == str(damaged)
        assert isinstance(image, bytes) or image in ("BadImage", "UnreadableInput")
        assert key.encode() is not None
