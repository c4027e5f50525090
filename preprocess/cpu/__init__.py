"""Pixels on a CPU: loops that Numba compiles, equal to the reference in every bit."""
