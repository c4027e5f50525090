"""``make bench``: competitors served side by side, driven by perf_analyzer. README.md is the method."""
