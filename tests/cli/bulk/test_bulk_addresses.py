"""Sources and outputs behind addresses, in S3 and on file systems that fsspec brings, and Parquet files."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bulk_fakes import Bulk, loaded, photos, read, rows, shard, table
from patience import wait_until
from PIL import Image

from onestream.cli.bulk.ray.folder import ABOUT, OutputFolder
from onestream.cli.bulk.sources import counter, samples
from onestream.client import BadImage, OnestreamError, Tensors
from onestream.measure.image_files import ImageNames

if TYPE_CHECKING:
    from s3_server import S3Server

Bucket = Callable[[Mapping[str, bytes]], str]


def test_every_kind_of_source(bucket: Bucket) -> None:
    at = bucket(
        {
            "photos/b.jpg": b"b",
            "photos/a.png": b"a",
            "photos/notes.txt": b"no",
            "photos/below/c.JPG": b"c",
            "shards/train-0.tar": shard({"x/1.jpg": b"1", "x/1.txt": b"no", "x/2.png": b"2"}),
            "shards/train-1.tar": shard({"3.jpg": b"3"}),
            "shards/train-1.tar.gz": b"no",
            "rows.parquet": table([b"r", b"s"]),
        }
    )
    folder = [(f"{at}/photos/a.png", "", b"a"), (f"{at}/photos/b.jpg", "", b"b")]
    below = [(f"{at}/photos/below/c.JPG", "", b"c")]
    tar = [(f"{at}/shards/train-0.tar", "x/1", b"1"), (f"{at}/shards/train-0.tar", "x/2", b"2")]
    other_tar = [(f"{at}/shards/train-1.tar", "3", b"3")]
    assert read(f"{at}/photos") == read(f"{at}/photos/") == folder + below
    assert read(f"{at}/photos/*.jpg") == folder[1:]
    assert read(f"{at}/shards/*.tar") == read(f"{at}/shards/train-{{0..1}}.tar") == tar + other_tar
    assert read(f"{at}/rows.parquet") == [(f"{at}/rows.parquet", "0", b"r"), (f"{at}/rows.parquet", "1", b"s")]
    lines = (f"{at}/photos/b.jpg\n", f"{at}/photos/below\n", f"{at}/shards/train-0.tar\n")
    assert read("-", listed=lines) == folder[1:] + below + tar
    for missing in (f"{at}/gone.jpg", f"{at}/shards/*.tgz"):
        assert read(missing) == [(missing, "", "UnreadableInput")]
    names = ImageNames()
    assert len(list(samples([f"{at}/photos"], names=names))) == 3
    assert "notes.txt" in names.passed_over
    (sample,) = samples([f"{at}/photos/notes.txt"])
    with pytest.raises(BadImage, match="allowed are at most 1"):
        sample.load(1)


def test_names_that_look_like_options_are_no_other_place(bucket: Bucket) -> None:
    at = bucket(dict.fromkeys(("who?region=x.jpg", "b.jpg", "photos?region=x/d.jpg", "what?.txt"), b"asked"))
    asked, who = (f"{at}/b.jpg", "", b"asked"), (f"{at}/who?region=x.jpg", "", "UnreadableInput")
    assert read(at) == [asked, (f"{at}/photos?region=x", "", "UnreadableInput"), who]
    assert read(f"{at}/*.jpg") == [asked, who]
    assert "an address cannot hold a name with ?" in str(read(f"{at}/*.jpg", told=str)[1])


def test_an_address_of_this_machine_is_a_path_and_web_pages_are_not_fetched(tmp_path: Path) -> None:
    photo, page = photos(tmp_path, {"a.jpg": b"a"}) / "a.jpg", "https://example.com/cat.jpg"
    found = samples([f"file://{tmp_path}", page])
    assert [(sample.path, sample.load(10)) for sample in found] == [(str(photo), str(photo)), (page, page)]


def test_the_command_takes_addresses_and_writes_to_this_machine(bulk: Bulk, bucket: Bucket, tmp_path: Path) -> None:
    at = bucket({"photos/a.jpg": b"a", "photos/bad.jpg": b"bad", "shard.tar": shard({"1.jpg": b"1"})})
    for out in (tmp_path / "out.parquet", tmp_path / "out.jsonl"):
        done = bulk.run(f"{at}/photos", f"{at}/shard.tar", "--to", out)
        assert done.exit_code == 1, done.stderr
        expected = [("photos/a.jpg", None), ("photos/bad.jpg", "corrupt"), ("shard.tar", None)]
        assert [(row["path"], row.get("error")) for row in rows(out)] == [
            (f"{at}/{name}", why) for name, why in expected
        ]
    told = bulk.refused(f"{at}/photos", "--to", f"{at}/out.csv")
    assert "is on another machine, which is for --ray" in told


# ---- Parquet --------------------------------------------------------------------------------------------------------

RECORDS = [{"bytes": b"a", "path": "1.jpg"}, {"bytes": b"b", "path": None}, {"bytes": None, "path": "x"}]
"""As Hugging Face's data sets have them."""


def binary(*images: bytes | None) -> pa.Array:
    return pa.array(images, pa.binary())


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"image": binary(b"a", None, bytes(20_000)), "label": [1, 2, 3]},
            [("0", b"a"), ("1", "UnreadableInput"), ("2", "BadImage")],
        ),
        ({"image": pa.array([b"a", b"b"], pa.large_binary()), "key": ["cat", None]}, [("cat", b"a"), ("1", b"b")]),
        ({"image": RECORDS}, [("0", b"a"), ("1", b"b"), ("2", "UnreadableInput")]),
    ],
)
def test_rows_of_parquet_are_images(tmp_path: Path, columns: dict[str, Any], expected: list[Any]) -> None:
    path = tmp_path / "train.PARQUET"
    parquet.write_table(pa.table(columns), path)
    assert read(path) == [(str(path), *one) for one in expected]


def test_the_column_is_named_where_there_are_several(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"image": [b"a"], "mask": [b"m"]}), path)
    (sample,) = samples([str(path)])
    with pytest.raises(OnestreamError, match=r"2 columns of bytes \(image, mask\), expected 1; name one by --column"):
        sample.load(100)
    assert read(path, column="mask") == [(str(path), "0", b"m")]
    (sample,) = samples([str(path)], column="label")
    with pytest.raises(OnestreamError, match="no column 'label' of bytes; there are image, mask"):
        sample.load(100)


def test_parquet_is_counted_by_its_footer_and_a_damaged_file_is_one_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.table({"image": [b"a"] * 1000}), path)
    count = counter([str(path)], every_file=False)
    assert count() == len(read(path)) == 1000
    path.write_bytes(path.read_bytes()[:-10])
    assert [image for _, _, image in read(path)] == ["UnreadableInput"]


def test_a_large_row_group_is_not_held_whole(tmp_path: Path) -> None:
    images = [os.urandom(50_000) for _ in range(640)]
    # A page is held whole, and has by default up to 1,024 rows.
    parquet.write_table(pa.table({"image": binary(*images)}), tmp_path / "rows.parquet", write_batch_size=16)
    held = []
    before = pa.total_allocated_bytes()
    for sample, image in zip(samples([str(tmp_path / "rows.parquet")]), images, strict=True):
        held.append(pa.total_allocated_bytes() - before)
        assert loaded(sample, 1_000_000) == image
    # A few times the 64 rows that are asked for at once; the row group has 32 MB.
    assert max(held) < 16_000_000


# ---- S3 -------------------------------------------------------------------------------------------------------------

T = TypeVar("T")
PART = "part-00000000-0123456789abcdef.jsonl"


def test_names_are_taken_as_they_are(s3: S3Server) -> None:
    names = ["[j]*.jpg", "a b.jpg", "d%20e.jpg", "f#g.jpg", "h+i.jpg", "é.jpg"]
    bucket = s3.bucket({f"photos/{name}": name.encode() for name in names})
    assert read(f"{bucket}/photos") == [(f"{bucket}/photos/{name}", "", name.encode()) for name in names]


def test_a_listed_image_costs_no_question_before_it_is_read(s3: S3Server) -> None:
    bucket = s3.bucket({"a.jpg": b"a"})
    s3.requests.clear()
    (sample,) = samples(["-"], [f"{bucket}/a.jpg\n"])
    assert s3.requests == []
    assert loaded(sample) == b"a"


@pytest.mark.parametrize(("name", "most_requests"), [("shard.tar", 4), ("rows.parquet", 6)])
def test_what_holds_many_images_is_asked_for_in_large_pieces(s3: S3Server, name: str, most_requests: int) -> None:
    """Of Parquet three pieces of 4 MiB, the footer, and what its length is."""
    images = [os.urandom(100_000) for _ in range(100 if name == "rows.parquet" else 60)]
    files = {f"{number:03}.jpg": image for number, image in enumerate(images)}
    bucket = s3.bucket({name: shard(files) if name == "shard.tar" else table(images)})
    s3.requests.clear()
    assert [image for _, _, image in read(f"{bucket}/{name}", most=1_000_000)] == images
    assert len(s3.requests) <= most_requests


def in_flight(s3: S3Server, call: Callable[[], T], count: int) -> T:
    """What a call returns that reads so many images at once, and no more."""
    s3.most_reads = 0
    with ThreadPoolExecutor(1) as thread:
        with s3.held(lambda request: request.method == "GET" and request.path.endswith(".jpg")) as held:
            running = thread.submit(call)
            wait_until(lambda: len(held.waiting) == count or running.done())
        done = running.result()
    assert s3.most_reads == count
    return done


def test_no_more_images_are_read_at_once_than_are_in_flight(bulk: Bulk, s3: S3Server) -> None:
    bucket = s3.bucket({f"photos/{number:02}.jpg": b"%d" % number for number in range(30)})
    done = in_flight(s3, lambda: bulk.run(f"{bucket}/photos", "--in-flight", 4), 4)
    assert done.exit_code == 0, done.stderr
    assert sorted(bulk.transport.sent) == sorted(b"%d" % number for number in range(30))


def test_a_worker_reads_a_few_images_ahead(s3: S3Server, repository: Path) -> None:
    pytest.importorskip("ray")
    from onestream.cli.bulk.ray.answering import InProcessRows
    from onestream.serving.models.in_process import InProcess

    picture = io.BytesIO()
    Image.new("RGB", (32, 32)).save(picture, "JPEG")
    bucket = s3.bucket({f"photos/{number:02}.jpg": picture.getvalue() for number in range(20)})
    maker = InProcessRows(InProcess(repository / "classify_fused"), top=1)
    found = in_flight(s3, lambda: list(maker.rows(samples([f"{bucket}/photos"]))), 16)
    assert [row.error for row in found] == [None] * 20


OF_PYARROW = ["?endpoint_override={place}&scheme=http", "?endpoint_override=http://{place}&region=us-east-1"]


@pytest.mark.parametrize("options", OF_PYARROW)
def test_an_address_may_say_where_the_store_is(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, bulk: Bulk, tmp_path: Path, options: str
) -> None:
    bucket = s3.bucket({"photos/a.jpg": b"a", "photos/b.png": b"b", "x.tar": shard({"1.jpg": b"1"})})
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    options = options.format(place=s3.place)
    assert read(f"{bucket}/photos{options}") == [
        (f"{bucket}/photos/a.jpg{options}", "", b"a"),
        (f"{bucket}/photos/b.png{options}", "", b"b"),
    ]
    found = read(f"{bucket}/photos/*.jpg{options}", f"{bucket}/*.tar{options}")
    assert [image for _, _, image in found] == [b"a", b"1"]
    assert bulk.run(f"{bucket}/photos{options}", "--to", tmp_path / "out.csv").exit_code == 0
    out = OutputFolder(f"{bucket}/labels{options}")
    out.begin({}, anew=False)
    out.write(PART, b"rows")
    assert out.names() == s3.names(f"{bucket}/labels") == {ABOUT, PART}
    assert out.read(PART) == b"rows"
    out.begin({}, anew=True)
    assert out.names() == {ABOUT}


@pytest.mark.parametrize("where", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_environment_says_where_the_store_is_and_a_profile_who_asks(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    (tmp_path / "credentials").write_text(
        f"[labels]\naws_access_key_id = {s3.key_id}\naws_secret_access_key = {s3.secret}\n"
    )
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv(where, f"http://{s3.place}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "labels")
    bucket = s3.bucket({"photos/a.jpg": b"a"})
    assert [image for _, _, image in read(f"{bucket}/photos")] == [b"a"]


def test_what_names_no_place_is_told(s3: S3Server, bulk: Bulk) -> None:
    missing, photos = uuid.uuid4().hex, f"{s3.bucket({'photos/a.jpg': b'a'})}/photos"
    for source in ("photos", "a.jpg", "*.jpg", "x.tar", "x.parquet"):
        ((path, key, reason),) = read(f"s3://{missing}/{source}", told=str)
        assert (path, key) == (f"s3://{missing}/{source}", "")
        assert missing in str(reason)
    for source, why in ((f"s3://{missing}/photos", missing), (f"{photos}?endpoint=here", "Unexpected query parameter")):
        done = bulk.run(source)
        assert done.exit_code == 1
        assert why in done.stdout
        with pytest.raises(OSError, match=why):
            OutputFolder(source).begin({}, anew=False)


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_told(s3: S3Server, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    bucket = s3.bucket({"photos/a.jpg": b"a", "x.tar": shard({"1.jpg": b"1"})})
    monkeypatch.setenv(variable, "AKIAWRONG00000000000")
    for source in ("photos", "photos/a.jpg", "photos/*.jpg", "x.tar"):
        ((path, _, reason),) = read(f"{bucket}/{source}", told=str)
        assert path == f"{bucket}/{source}"
        assert "ACCESS_DENIED" in str(reason)
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        OutputFolder(f"{bucket}/labels").begin({}, anew=False)


def test_what_is_gone_while_the_run_works_is_a_row(s3: S3Server, bulk: Bulk) -> None:
    bucket = s3.bucket({f"photos/{name}.jpg": name.encode() for name in "abc"})
    answer = bulk.transport.answer

    def deleting(data: bytes) -> Tensors:
        s3.delete(f"{bucket}/photos/b.jpg")
        return answer(data)

    bulk.transport.answer = deleting
    done = bulk.run(f"{bucket}/photos", "--in-flight", 1)
    assert done.exit_code == 1
    assert bulk.transport.sent == [b"a", b"c"]
    assert f"{bucket}/photos/b.jpg" in done.stdout
    assert "unreadable_input" in done.stdout


@pytest.fixture
def out(s3: S3Server) -> OutputFolder:
    """The folder of a run that has begun."""
    made = OutputFolder(f"{s3.bucket()}/labels")
    made.begin({}, anew=False)
    return made


WRITES = """
import sys
from onestream.cli.bulk.ray.folder import OutputFolder
OutputFolder(sys.argv[1]).write(sys.argv[2], bytes(30 << 20))
"""


def test_a_part_half_of_which_was_sent_is_not_there(s3: S3Server, out: OutputFolder) -> None:
    with s3.held(lambda request: request.is_upload) as held:
        process = subprocess.Popen([sys.executable, "-c", WRITES, out.place, PART])
        wait_until(lambda: held.waiting or process.poll() is not None)
        assert out.names() == {ABOUT}
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert out.names() == {ABOUT}
    out.write(PART, b"whole")
    assert out.names() == {ABOUT, PART}
    assert out.read(PART) == b"whole"


def test_a_write_that_is_broken_off_leaves_no_file(out: OutputFolder) -> None:
    with pytest.raises(TypeError):
        out.write(PART, "no bytes")  # type: ignore[arg-type]
    assert out.names() == {ABOUT}
