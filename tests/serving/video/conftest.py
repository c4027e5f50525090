"""The machine of the tests of video on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from video_machine import Machine, machine_with_a_gpu


@pytest.fixture
def machine() -> Iterator[Machine]:
    with machine_with_a_gpu() as found:
        yield found
