"""Writes the type stubs in ``typings`` from the installed libraries: ``make stubs``."""
