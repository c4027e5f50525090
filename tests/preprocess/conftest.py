"""Settings of this room's property tests: the same examples on every run, and no time limit for one example."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=100, print_blob=True)
settings.load_profile("repeatable")
