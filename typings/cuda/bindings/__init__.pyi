# Handles of cuda-bindings 13.5.0 that signatures of cuda.core name, by `make stubs`.

from cuda.bindings import driver as driver
