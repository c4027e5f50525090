# From the wheel cuda-core 1.2.2 (Apache-2.0, NVIDIA), by `make stubs`.


