"""Measuring: load, spread, agreement, parity, capacity and tuning, for the commands and the benchmarks alike."""
