"""Sources and outputs in S3, on a real server of its protocol: read, written, refused, and killed on the way."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from bulk_fakes import Bulk, photos
from patience import PATIENCE_S, wait_until
from ray_clusters import ROOT, begin, cluster, rows, run, workers_of

from onestream.cli.bulk.ray.folder import ABOUT, COMPLETE, OutputFolder
from onestream.cli.bulk.sources import Sample, samples
from onestream.client import OnestreamError
from onestream.client._transports.base import Tensors

pytest.importorskip("moto", reason="moto is missing, a server of S3's protocol")

from s3_server import S3Server

T = TypeVar("T")
PHOTOS = sorted((ROOT / "examples" / "photos").glob("*.jpg"))
PART = "part-00000000-0123456789abcdef.jsonl"


@pytest.fixture(scope="module")
def server_of_s3() -> Iterator[S3Server]:
    made = S3Server()
    yield made
    made.close()


@pytest.fixture
def s3(server_of_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, as the environment's variables say."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server_of_s3.variables.items():
        monkeypatch.setenv(name, value)
    server_of_s3.requests.clear()
    server_of_s3.most_reads = 0
    return server_of_s3


def shard(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def table(images: list[bytes]) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"image": pa.array(images, pa.binary())}), file)
    return file.getvalue()


def loaded(sample: Sample, max_bytes: int = 1_000_000) -> bytes | str:
    try:
        return sample.load(max_bytes)
    except OnestreamError as error:
        return str(error)


def read(*arguments: str, listed: tuple[str, ...] = ()) -> list[tuple[str, str, bytes | str]]:
    return [(one.path, one.key, loaded(one)) for one in samples(arguments, listed)]


# ---- sources --------------------------------------------------------------------------------------------------------


def test_every_kind_of_source(s3: S3Server) -> None:
    bucket = s3.bucket(
        {
            "photos/b.jpg": b"b",
            "photos/a.png": b"a",
            "photos/notes.txt": b"no",
            "photos/below/c.JPG": b"c",
            "shards/train-0.tar": shard({"x/1.jpg": b"1", "x/1.txt": b"no", "x/2.png": b"2"}),
            "shards/train-1.tar.gz": b"no",
            "rows.parquet": table([b"r", b"s"]),
        }
    )
    folder = [(f"{bucket}/photos/a.png", "", b"a"), (f"{bucket}/photos/b.jpg", "", b"b")]
    below = [(f"{bucket}/photos/below/c.JPG", "", b"c")]
    tar = [(f"{bucket}/shards/train-0.tar", "x/1", b"1"), (f"{bucket}/shards/train-0.tar", "x/2", b"2")]
    assert read(f"{bucket}/photos") == read(f"{bucket}/photos/") == folder + below
    assert read(f"{bucket}/photos/*.jpg") == folder[1:]
    assert read(f"{bucket}/shards/*.tar") == read(f"{bucket}/shards/train-{{0..0}}.tar") == tar
    parquet_rows = [(f"{bucket}/rows.parquet", "0", b"r"), (f"{bucket}/rows.parquet", "1", b"s")]
    assert read(f"{bucket}/rows.parquet") == parquet_rows
    lines = (f"{bucket}/photos/b.jpg\n", f"{bucket}/photos/below\n", f"{bucket}/shards/train-0.tar\n")
    assert read("-", listed=lines) == folder[1:] + below + tar


@pytest.mark.parametrize("name", ["a b.jpg", "d%20e.jpg", "f#g.jpg", "h+i.jpg", "é.jpg", "[j]*.jpg"])
def test_names_are_taken_as_they_are(s3: S3Server, name: str) -> None:
    bucket = s3.bucket({f"photos/{name}": name.encode()})
    assert read(f"{bucket}/photos") == [(f"{bucket}/photos/{name}", "", name.encode())]


def test_a_name_that_looks_like_options_is_a_row_that_says_so(s3: S3Server) -> None:
    bucket = s3.bucket({"photos/a.jpg": b"a", "photos/who?.jpg": b"who"})
    for source in ("photos", "photos/*", "photos/*.jpg"):
        (_, _, first), (_, _, second) = read(f"{bucket}/{source}")
        assert first == b"a"
        assert isinstance(second, str)
        assert "who?.jpg: an address cannot hold a name with ?" in second


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
    assert [image for _, _, image in read(f"{bucket}/shard.tar")] == list(images.values())
    assert len(s3.requests) <= 4


def test_a_parquet_file_is_asked_for_in_large_pieces(s3: S3Server) -> None:
    images = [os.urandom(100_000) for _ in range(200)]
    bucket = s3.bucket({"rows.parquet": table(images)})
    s3.requests.clear()
    assert [image for _, _, image in read(f"{bucket}/rows.parquet")] == images
    # Five pieces of 4 MiB, the footer, and what its length is.
    assert len(s3.requests) <= 8


def test_the_command_reads_s3(bulk: Bulk, s3: S3Server, tmp_path: Path) -> None:
    bucket = s3.bucket({"photos/a.jpg": b"a", "photos/bad.jpg": b"bad", "shard.tar": shard({"1.jpg": b"1"})})
    for out in (tmp_path / "out.parquet", tmp_path / "out.jsonl"):
        done = bulk.run(f"{bucket}/photos", f"{bucket}/shard.tar", "--to", out)
        assert done.exit_code == 1, done.stderr
        assert [(row["path"], row["error"] if row.get("error") else None) for row in rows(out)] == [
            (f"{bucket}/photos/a.jpg", None),
            (f"{bucket}/photos/bad.jpg", "corrupt"),
            (f"{bucket}/shard.tar", None),
        ]


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

    bucket = s3.bucket({f"photos/{number:02}.jpg": PHOTOS[0].read_bytes() for number in range(40)})
    maker = InProcessRows(InProcess(repository / "classify_fused"), top=1)
    found = in_flight(s3, lambda: list(maker.rows(samples([f"{bucket}/photos"]))), 16)
    assert [row.error for row in found] == [None] * 40


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
        ((path, key, reason),) = read(f"{missing}/{source}")
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
        ((path, _, reason),) = read(f"{bucket}/{source}")
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


# ---- outputs --------------------------------------------------------------------------------------------------------


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
        process = subprocess.Popen([sys.executable, "-c", WRITES, out.place, PART], cwd=ROOT)
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


# ---- Ray ------------------------------------------------------------------------------------------------------------


def fetched(s3: S3Server, address: str, folder: Path) -> Path:
    """A folder of this machine with the files of an output."""
    folder.mkdir()
    for name in s3.names(address):
        (folder / name).write_bytes(s3.get(f"{address}/{name}"))
    return folder


@pytest.mark.slow
def test_ray_reads_and_writes_s3(s3: S3Server, repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    images = {photo.name: photo.read_bytes() for photo in PHOTOS}
    files = {
        **{f"photos/{name}": data for name, data in images.items()},
        "photos/cut.jpg": next(iter(images.values()))[:2000],
        "shard.tar": shard(images),
        "rows.parquet": table(list(images.values())),
    }
    here = photos(tmp_path / "here", files)
    bucket = s3.bucket(files)
    options = ["--ray", "--repository", repository, "--files-per-part", 3]
    names = ["photos", "shard.tar", "rows.parquet", "gone.jpg"]
    for form in ("parquet", "jsonl"):
        alike = [*options, "--format", form, "--to"]
        local = run(*(here / name for name in names), *alike, tmp_path / form)
        assert local.returncode == 1, local.stderr
        remote = run("-", *alike, f"{bucket}/{form}", input="".join(f"{bucket}/{name}\n" for name in names))
        assert remote.returncode == 1, remote.stderr
        assert f"→ {bucket}/{form}" in remote.stderr
        found = fetched(s3, f"{bucket}/{form}", tmp_path / f"fetched-{form}")
        assert {ABOUT, COMPLETE} < {path.name for path in found.iterdir()}
        expected = [{**row, "path": row["path"].replace(str(here), bucket)} for row in rows(tmp_path / form)]
        assert without_reasons(rows(found)) == without_reasons(expected)
        assert len(expected) == 3 * len(images) + 2


def without_reasons(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows without what a file system says of a file that is not there."""
    return [{name: value for name, value in row.items() if name != "reason"} for row in found]


@pytest.mark.slow
def test_ray_says_what_the_store_refuses(s3: S3Server, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    bucket = s3.bucket()
    missing = f"s3://{uuid.uuid4().hex}"
    nowhere = run(PHOTOS[0], "--to", f"{missing}/labels", "--ray", "--repository", repository)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused = run(PHOTOS[0], "--to", f"{bucket}/labels", "--ray", "--repository", repository)
    assert (nowhere.returncode, refused.returncode) == (2, 2)
    assert missing.removeprefix("s3://") in nowhere.stderr
    assert bucket.removeprefix("s3://") in refused.stderr
    assert "ACCESS_DENIED" in refused.stderr
    assert "Traceback" not in nowhere.stderr + refused.stderr


@pytest.mark.slow
def test_ray_goes_on_after_kills_in_the_middle_of_uploads(s3: S3Server, repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    bucket = s3.bucket({f"photos/{n:02}-{photo.name}": photo.read_bytes() for n in range(40) for photo in PHOTOS})
    out = f"{bucket}/labels"

    def parts() -> int:
        return sum(name.startswith("part-") for name in s3.names(out))

    with cluster(nodes=2) as nodes:
        arguments = [f"{bucket}/photos", "--to", out, "--repository", repository]
        with s3.held(lambda request: request.is_upload and "/part-" in request.path) as held:
            process = begin(nodes, *arguments)
            wait_until(lambda: len(held.waiting) == 2 or process.poll() is not None)
            for worker in [worker for node in nodes.worker_nodes for worker in workers_of(node)]:
                worker.kill()
            process.kill()
            process.communicate()
            assert parts() == 0
        process = begin(nodes, *arguments)
        wait_until(lambda: parts() >= 3 or process.poll() is not None)
        next(worker for node in nodes.worker_nodes for worker in workers_of(node)).kill()
        wait_until(lambda: parts() >= 8 or process.poll() is not None)
        process.kill()
        process.communicate()
        assert COMPLETE not in s3.names(out)
        process = begin(nodes, *arguments)
        _, complaints = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, complaints
    assert "images of an earlier run" in complaints
    found = rows(fetched(s3, out, tmp_path / "fetched"))
    assert [row["path"] for row in found] == sorted(
        f"{bucket}/photos/{n:02}-{one.name}" for n in range(40) for one in PHOTOS
    )
    assert not any(row.get("error") for row in found)
    assert all(name.startswith(("part-", "_")) for name in s3.names(out))
