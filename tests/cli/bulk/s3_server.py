"""A real S3 server on the loopback address, moto's: it checks signatures, and a test may count and hold requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

from moto.core.authorization import enable_iam_authentication
from moto.iam.models import iam_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from patience import NEVER_S
from pyarrow.fs import FileSelector, FileType, S3FileSystem
from werkzeug.serving import make_server

REGION = "us-east-1"
ACCOUNT = "123456789012"
USER = "labels"
EVERYTHING_IN_S3 = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}


class Request(NamedTuple):
    """What a client asks for."""

    method: str
    path: str
    query: str

    @property
    def is_upload(self) -> bool:
        """Whether it brings a piece of a file."""
        return self.method == "PUT" and "partNumber=" in self.query

    @property
    def is_read(self) -> bool:
        """Whether it asks for what is in a file."""
        return self.method == "GET" and "list-type" not in self.query


class Held:
    """Requests that wait at the door until they are let go."""

    def __init__(self, wanted: Callable[[Request], bool]) -> None:
        self.wanted = wanted
        self.waiting: list[Request] = []
        self.let_go = threading.Event()


class S3Server:
    """See the module. ``requests`` are those so far, ``most_reads`` how many reads were answered at once."""

    def __init__(self) -> None:
        users = iam_backends[ACCOUNT]["aws"]
        users.create_user(REGION, USER)
        users.put_user_policy(USER, "all", json.dumps({"Version": "2012-10-17", "Statement": [EVERYTHING_IN_S3]}))
        key = users.create_access_key(USER)
        self.key_id, self.secret = key.access_key_id, key.secret_access_key
        self._opened = ExitStack()
        self._opened.enter_context(enable_iam_authentication())
        self._opened.callback(users.reset)
        self.requests: list[Request] = []
        self.most_reads = self._reads = 0
        self._held: Held | None = None
        self._lock = threading.Lock()
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Silent)
        self.place = f"127.0.0.1:{self._server.server_port}"
        self.files = S3FileSystem(
            access_key=self.key_id,
            secret_key=self.secret,
            region=REGION,
            scheme="http",
            endpoint_override=self.place,
            allow_bucket_creation=True,
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._opened.close()

    @property
    def variables(self) -> dict[str, str]:
        """What a user's environment says of it."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.place}",
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def bucket(self, files: dict[str, bytes] | None = None) -> str:
        """The address of a new bucket with these files."""
        name = f"bucket-{uuid4().hex}"
        self.files.create_dir(name)
        for key, data in (files or {}).items():
            self.put(f"s3://{name}/{key}", data)
        return f"s3://{name}"

    def put(self, address: str, data: bytes) -> None:
        with self.files.open_output_stream(_path(address)) as file:
            file.write(data)

    def get(self, address: str) -> bytes:
        with self.files.open_input_stream(_path(address)) as file:
            return bytes(file.read())

    def delete(self, address: str) -> None:
        self.files.delete_file(_path(address))

    def names(self, folder: str) -> set[str]:
        """The names of the files in a folder, which need not be there."""
        found = self.files.get_file_info(FileSelector(_path(folder), allow_not_found=True))
        return {one.base_name for one in found if one.type == FileType.File}

    @contextmanager
    def held(self, wanted: Callable[[Request], bool]) -> Iterator[Held]:
        """Hold the requests that are wanted, until they are let go or the block ends."""
        self._held = held = Held(wanted)
        try:
            yield held
        finally:
            self._held = None
            held.let_go.set()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        request = Request(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"])
        reads = request.is_read
        with self._lock:
            self.requests.append(request)
            self._reads += reads
            self.most_reads = max(self.most_reads, self._reads)
        try:
            held = self._held
            if held is not None and held.wanted(request):
                held.waiting.append(request)
                held.let_go.wait(NEVER_S)
            return self._moto(environ, start_response)
        finally:
            with self._lock:
                self._reads -= reads


class _Silent(MotoRequestHandler):
    def log_request(self, *_: object) -> None:
        """A line for each request would hide what a test says."""


def _path(address: str) -> str:
    return address.removeprefix("s3://")
