"""nginx on this machine, run for one proxy."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from onestream.serving.child_process import tied
from onestream.serving.errors import BadProxy, ProxyDied
from onestream.serving.proxy.nginx_config import nginx_config
from onestream.serving.proxy.settings import Proxy

_START_TIMEOUT_S = 15.0
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.05


def find_nginx() -> Path:
    """Find nginx: on PATH, else where Debian has it, which is not on everybody's PATH.

    Raises:
        BadProxy: there is none.
    """
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise BadProxy("no nginx on this machine; on Debian and Ubuntu: apt-get install nginx-light")
    return Path(found)


class RunningProxy:
    """nginx with the configuration of a proxy, from ``start`` to ``stop``. A context manager.

    What nginx logs goes to this process's stdout and stderr. The thread that starts it must live as long as it.

    Raises:
        BadProxy: there is none on this machine.
    """

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._nginx = find_nginx()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Check the configuration with nginx itself, start it, and return when every address is open.

        Raises:
            BadProxy: nginx refuses the configuration, or a file that it names.
            ProxyDied: it ended at once, such as for a port in use; it has said why.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="onestream-proxy-"))
        # Workers of a root's nginx are not root, and write here; the configuration holds no secret.
        self._folder.chmod(0o711)
        config = self._folder / "nginx.conf"
        command = [str(self._nginx), "-e", "stderr", "-c", str(config)]
        try:
            config.write_text(nginx_config(self.proxy, folder=str(self._folder)), encoding="utf-8")
            checked = subprocess.run([*command, "-t", "-q"], capture_output=True, text=True, check=False)
            if checked.returncode != 0:
                raise BadProxy(f"nginx refuses the configuration: {checked.stderr.strip().splitlines()[0]}")
            self._pid_file.unlink(missing_ok=True)  # the check leaves an empty one
            # A killed nginx would leave its workers behind; a terminated one ends them.
            tied_command = tied(*command, "-g", "daemon off;", by=signal.SIGTERM)
            self._process = subprocess.Popen(tied_command, stdin=subprocess.DEVNULL, start_new_session=True)
            self._wait_until_open(self._process)
        except BaseException:
            self.stop()
            raise

    def check_running(self) -> None:
        """Raise the reason if nginx has ended.

        Raises:
            ProxyDied: it has.
        """
        assert self._process is not None, "the proxy was not started"
        status = self._process.poll()
        if status is not None:
            raise ProxyDied(f"nginx ended with status {status}")

    def reload(self) -> None:
        """Read tokens and certificates anew; requests in progress go on.

        What nginx refuses it logs, and goes on with what it had.
        """
        assert self._process is not None, "the proxy was not started"
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """Stop nginx, which ends requests in progress, and remove what it wrote. Does nothing the second time."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
            # Whoever is left of its session: workers of a killed master would go on.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> RunningProxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _pid_file(self) -> Path:
        assert self._folder is not None, "the proxy was not started"
        return self._folder / "nginx.pid"

    def _wait_until_open(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        # nginx writes its process id when it listens at all addresses.
        while not self._pid_file.exists():
            if process.poll() is not None:
                raise ProxyDied(f"nginx ended with status {process.returncode} before it served; its reason is above")
            if time.monotonic() > deadline:
                raise ProxyDied(f"nginx was not ready within {_START_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)
