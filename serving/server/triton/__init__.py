"""One tritonserver and its processes: found, started, watched, ended, and cleaned up after."""
