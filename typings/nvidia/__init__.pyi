# The namespace of NVIDIA's wheels, by `make stubs`.


