"""CPU time around a measurement: the server's, and what other programs on the machine took."""

from __future__ import annotations

import resource
from dataclasses import dataclass

import psutil
import tritonclient.grpc as triton


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters at one moment. Times are in CPU seconds since some start; counts are of one model."""

    server_s: float
    own_s: float
    busy_s: float
    idle_s: float
    images: int
    executions: int

    @classmethod
    def now(cls, *, server_pid: int, client: triton.InferenceServerClient, model: str) -> Usage:
        """Read the counters of the machine, of the server's processes and of a served model."""
        server = psutil.Process(server_pid)
        server_s = sum(_cpu_s(process) for process in (server, *server.children(recursive=True)))
        finished = resource.getrusage(resource.RUSAGE_CHILDREN)
        own_s = server_s + _cpu_s(psutil.Process()) + finished.ru_utime + finished.ru_stime
        machine = psutil.cpu_times()
        idle_s = machine.idle + machine.iowait
        (statistics,) = client.get_inference_statistics(model).model_stats
        return cls(
            server_s=server_s,
            own_s=own_s,
            busy_s=sum(machine) - idle_s - machine.guest - machine.guest_nice,  # guest is counted in user already
            idle_s=idle_s,
            images=statistics.inference_count,
            executions=statistics.execution_count,
        )

    def images_per_execution(self, earlier: Usage) -> float:
        """Mean batch of the model since ``earlier``; 0 where it did not run."""
        executions = self.executions - earlier.executions
        return (self.images - earlier.images) / executions if executions else 0.0

    def server_cpu_ms(self, earlier: Usage) -> float:
        """CPU milliseconds of the server per image since ``earlier``; 0 where no image was served."""
        images = self.images - earlier.images
        return (self.server_s - earlier.server_s) * 1000 / images if images else 0.0

    def others_cpu_share(self, earlier: Usage) -> float:
        """Share of the machine that neither the server nor the benchmark used since ``earlier``, 0 to 1."""
        busy_s, idle_s = self.busy_s - earlier.busy_s, self.idle_s - earlier.idle_s
        total_s = busy_s + idle_s
        return max(0.0, busy_s - (self.own_s - earlier.own_s)) / total_s if total_s else 0.0


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
