"""Sources and outputs in S3, on a real server of its protocol; test_bulk_addresses has what all addresses share."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from bulk_fakes import Bulk, loaded, read, shard, table
from patience import wait_until
from PIL import Image

from onestream.cli.bulk.ray.folder import ABOUT, OutputFolder
from onestream.cli.bulk.sources import samples
from onestream.client import Tensors

pytest.importorskip("moto", reason="moto is missing, a server of S3's protocol")

from s3_server import S3Server

T = TypeVar("T")
PART = "part-00000000-0123456789abcdef.jsonl"


# ---- sources --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b.jpg", "d%20e.jpg", "f#g.jpg", "h+i.jpg", "é.jpg", "[j]*.jpg"])
def test_names_are_taken_as_they_are(s3: S3Server, name: str) -> None:
    bucket = s3.bucket({f"photos/{name}": name.encode()})
    assert read(f"{bucket}/photos") == [(f"{bucket}/photos/{name}", "", name.encode())]


def test_a_listed_image_costs_no_question_before_it_is_read(s3: S3Server) -> None:
    bucket = s3.bucket({"a.jpg": b"a"})
    s3.requests.clear()
    (sample,) = samples(["-"], [f"{bucket}/a.jpg\n"])
    assert s3.requests == []
    assert loaded(sample) == b"a"


def test_a_shard_is_asked_for_in_large_pieces(s3: S3Server) -> None:
    images = {f"{number:03}.jpg": os.urandom(100_000) for number in range(60)}
    bucket = s3.bucket({"shard.tar": shard(images)})
    s3.requests.clear()
    assert [image for _, _, image in read(f"{bucket}/shard.tar", most=1_000_000)] == list(images.values())
    assert len(s3.requests) <= 4


def test_a_parquet_file_is_asked_for_in_large_pieces(s3: S3Server) -> None:
    images = [os.urandom(50_000) for _ in range(200)]
    bucket = s3.bucket({"rows.parquet": table(images)})
    s3.requests.clear()
    assert [image for _, _, image in read(f"{bucket}/rows.parquet", most=1_000_000)] == images
    # Three pieces of 4 MiB, the footer, and what its length is.
    assert len(s3.requests) <= 6


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


# ---- where the store is, and who asks -------------------------------------------------------------------------------

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
    assert [image for _, _, image in read(f"{bucket}/photos/*.jpg{options}", f"{bucket}/*.tar{options}")] == [
        b"a",
        b"1",
    ]
    assert bulk.run(f"{bucket}/photos{options}", "--to", tmp_path / "out.csv").exit_code == 0
    out = OutputFolder(f"{bucket}/labels{options}")
    out.begin({}, anew=False)
    out.write(PART, b"rows")
    assert out.names() == s3.names(f"{bucket}/labels") == {ABOUT, PART}
    assert out.read(PART) == b"rows"
    out.begin({}, anew=True)
    assert out.names() == {ABOUT}


def test_options_that_nobody_knows_are_refused(s3: S3Server, bulk: Bulk) -> None:
    bucket = s3.bucket({"photos/a.jpg": b"a"})
    done = bulk.run(f"{bucket}/photos?endpoint=here")
    assert done.exit_code == 1
    assert "Unexpected query parameter in S3 URI: 'endpoint'" in done.stdout
    with pytest.raises(OSError, match="Unexpected query parameter"):
        OutputFolder(f"{bucket}/out?endpoint=here").begin({}, anew=False)


def test_the_variable_of_s3_alone_says_where_the_store_is(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{s3.place}")
    bucket = s3.bucket({"photos/a.jpg": b"a"})
    assert [image for _, _, image in read(f"{bucket}/photos")] == [b"a"]


def test_a_profile_says_who_asks(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        f"[labels]\naws_access_key_id = {s3.key_id}\naws_secret_access_key = {s3.secret}\n"
    )
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "labels")
    bucket = s3.bucket({"photos/a.jpg": b"a"})
    assert [image for _, _, image in read(f"{bucket}/photos")] == [b"a"]


# ---- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("s3")
def test_a_bucket_that_is_not_there_is_named(bulk: Bulk) -> None:
    missing = f"s3://{uuid.uuid4().hex}"
    for source in ("photos", "a.jpg", "*.jpg", "x.tar", "x.parquet"):
        ((path, key, reason),) = read(f"{missing}/{source}", told=str)
        assert (path, key) == (f"{missing}/{source}", "")
        assert missing.removeprefix("s3://") in str(reason)
    done = bulk.run(f"{missing}/photos")
    assert done.exit_code == 1
    assert f"{missing}/photos" in done.stdout
    with pytest.raises(OSError, match=missing.removeprefix("s3://")):
        OutputFolder(f"{missing}/labels").begin({}, anew=False)


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


# ---- outputs, written, and killed on the way -------------------------------------------------------------------------


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


def test_a_part_is_there_when_the_store_has_all_of_it(s3: S3Server, out: OutputFolder) -> None:
    with s3.held(lambda request: request.is_completion) as held, ThreadPoolExecutor(1) as thread:
        written = thread.submit(out.write, PART, b"rows")
        wait_until(lambda: held.waiting or written.done())
        assert out.names() == {ABOUT}
        held.let_go.set()
        written.result()
    assert out.read(PART) == b"rows"


def test_a_write_that_is_broken_off_leaves_no_file(out: OutputFolder) -> None:
    with pytest.raises(TypeError):
        out.write(PART, "no bytes")  # type: ignore[arg-type]
    assert out.names() == {ABOUT}
