"""The libraries that are imported from; tests are skipped where one is not installed."""

import pytest
import torchvision_alone
from hypothesis import settings

torchvision_alone.load()
pytest.importorskip("timm")
pytest.importorskip("transformers")

settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=60, print_blob=True)
settings.load_profile("repeatable")
