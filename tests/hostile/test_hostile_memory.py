"""What callers and other users of a machine can do to a server by its shared memory, its regions and its arguments."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from closed_server import PASSWORD, Closed
from patience import PATIENCE_S
from shared_server import CLASSIFY, SharedServer
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from onestream.client import Client, SharedMemoryUnavailable
from onestream.serving.server.server import Server
from onestream.serving.server.triton import hidden_arguments, private_memory
from onestream.serving.server.triton.model_processes import find_model_processes
from onestream.serving.server.triton.orphan_cleanup import SHM_FOLDER, region_folder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PHOTO = ROOT / "examples" / "photos" / "cat.jpg"
needs_triton = pytest.mark.needs_triton
needs_root_and_setpriv = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can give up one of its rights, by setpriv of util-linux",
)


def regions_of(server: Server | SharedServer) -> set[str]:
    return {process.region for process in find_model_processes(server.pid).running}


@needs_triton
def test_administration_and_shared_memory_are_closed(closed: Closed) -> None:
    """Also without a proxy, to a local caller who knows the regions of the server."""
    region = regions_of(closed.server).pop()
    for url in (closed.server.grpc_url, closed.server.http_url):
        with Client(url, shared_memory=True) as client, pytest.raises(SharedMemoryUnavailable, match="--shared-memory"):
            client.classify(PHOTO, pipeline="classify_fused")
    connection = http.client.HTTPConnection(closed.server.http_address, timeout=PATIENCE_S)
    own = {"offset": 0, "byte_size": 4096}
    for method, path, body in (
        ("GET", "/v2/systemsharedmemory/status", None),
        ("POST", "/v2/systemsharedmemory/region/mine/register", own | {"key": f"/{region}"}),
        ("GET", "/v2/cudasharedmemory/status", None),
        ("POST", "/v2/cudasharedmemory/region/mine/register", own | {"raw_handle": {"b64": "bm8="}, "device_id": 0}),
        ("POST", "/v2/repository/index", None),
        ("POST", "/v2/repository/models/classify_fused/unload", None),
        ("GET", "/v2/trace/setting", None),
        ("GET", "/v2/logging", None),
    ):
        connection.request(method, path, body and json.dumps(body))
        answer = connection.getresponse()
        assert answer.status == 403, path
        answer.read()
    connection.close()
    with grpc.insecure_channel(closed.server.grpc_address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for name, fields in (
            ("RepositoryIndex", {}),
            ("SystemSharedMemoryStatus", {}),
            ("SystemSharedMemoryRegister", {"name": "mine", "key": f"/{region}", "byte_size": 4096}),
            ("CudaSharedMemoryStatus", {}),
            ("CudaSharedMemoryRegister", {"name": "mine", "raw_handle": b"no", "byte_size": 4096}),
            ("TraceSetting", {}),
            ("LogSettings", {}),
        ):
            request = getattr(messages, f"{name}Request")(**fields)
            with pytest.raises(grpc.RpcError, match="protocol is restricted"):
                getattr(stub, name)(request, timeout=PATIENCE_S)
    with Client(closed.server.grpc_url, timeout_s=PATIENCE_S) as client:
        assert client.classify(PHOTO, pipeline="classify_fused")


@needs_triton
def test_the_regions_of_a_closed_server_are_not_in_the_machines_dev_shm(closed: Closed) -> None:
    if not private_memory.private_memory_allowed():
        pytest.skip("the kernel lets this user have no /dev/shm of its own")
    regions = regions_of(closed.server)
    assert regions
    assert not regions & set(os.listdir(SHM_FOLDER))
    inside = region_folder(closed.server.pid)
    assert regions <= set(os.listdir(inside))
    assert stat.S_IMODE(inside.stat().st_mode) == 0o700
    assert not any("/dev/shm" in event for event in closed.events), "nothing is said where the protection is whole"


@needs_triton
@pytest.mark.serves(CLASSIFY)
def test_regions_beside_those_of_callers_are_closed_to_other_users(server: SharedServer) -> None:
    """Models were loaded at its start and later."""
    with (
        Client(server.grpc_address, shared_memory=True, timeout_s=PATIENCE_S) as by_memory,
        Client(server.grpc_address, timeout_s=PATIENCE_S) as by_message,
    ):
        answers = [client.infer("classify_fused", PHOTO) for client in (by_memory, by_message)]
        assert answers[0]["class_ids"].tolist() == answers[1]["class_ids"].tolist()
    found = set()
    for region in regions_of(server):
        with contextlib.suppress(FileNotFoundError):  # that of a model which is just unloaded
            found.add(stat.S_IMODE((SHM_FOLDER / region).stat().st_mode))
    assert found == {0o600}


def opens(server: Server, password: str) -> bool:
    """Whether a password opens the administration."""
    request = urllib.request.Request(
        f"{server.http_url}/v2/repository/index", data=b"{}", headers={"onestream-admin": password}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return False


@needs_triton
def test_nobody_reads_the_administrations_password_among_arguments(closed: Closed) -> None:
    # Other servers of this machine are watched as well; theirs open nothing here.
    assert [password for password in closed.passwords if opens(closed.server, password)] == []
    environment = Path("/proc") / str(closed.server.pid) / "environ"
    assert stat.S_IMODE(environment.stat().st_mode) == 0o400
    (password,) = set(PASSWORD.findall(environment.read_text()))
    assert opens(closed.server, password), "without this the test shows nothing"
    assert not any("token" in event for event in closed.events)


@pytest.mark.parametrize(
    ("prefix", "is_hidden"), [((), True), (("setarch", "linux32", "--"), False)], ids=["usually", "no tracer is known"]
)
def test_a_command_hears_arguments_that_others_do_not_read(prefix: Sequence[str], is_hidden: bool) -> None:
    says = "import json, sys; print(json.dumps([sys.argv[1:], open('/proc/self/cmdline').read().split(chr(0))]))"
    command = hidden_arguments.with_hidden_arguments(
        sys.executable, "-c", says, "a", hidden_arguments.hidden("FIRST"), "b", hidden_arguments.hidden("SECOND")
    )
    environment = {**os.environ, "FIRST": "--one=geheim é", "SECOND": ""}
    done = subprocess.run([*prefix, *command], env=environment, capture_output=True, text=True, check=True)
    heard, read = json.loads(done.stdout)
    assert heard == ["a", "--one=geheim é", "b", ""]
    assert any("geheim" in argument for argument in read) != is_hidden


@needs_root_and_setpriv
def test_where_the_kernel_allows_no_memory_of_its_own_the_command_runs_all_the_same() -> None:
    command = [sys.executable, "-c", "import os; print(os.stat('/dev/shm').st_dev)"]
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    private, shared = (
        subprocess.run(
            [*prefix, *private_memory.with_private_memory(*command)], capture_output=True, text=True, check=True
        )
        for prefix in ([], without)
    )
    assert int(shared.stdout) == SHM_FOLDER.stat().st_dev
    assert shared.stderr == ""
    if private_memory.private_memory_allowed():
        assert int(private.stdout) != SHM_FOLDER.stat().st_dev
