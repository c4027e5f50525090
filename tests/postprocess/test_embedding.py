"""Embeddings are what torch.nn.functional.normalize makes of features."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from onestream.postprocess.kinds.embedding import embeddings

# Sums in another order than torch's: a few units in the last place of a value up to 1.
TOLERANCE = 1e-6
FEATURES = arrays.arrays(
    st.sampled_from([np.float16, np.float32]),
    st.tuples(st.integers(1, 3), st.integers(1, 300)),
    elements=st.floats(-1000, 1000, width=16),
)


@given(FEATURES)
def test_equal_to_torch(features: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    expected = torch.nn.functional.normalize(torch.from_numpy(features.astype(np.float32)), eps=1e-12).numpy()
    found = embeddings(features, normalize=True)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@given(FEATURES)
def test_without_normalization_they_stay_as_they_are(features: np.ndarray) -> None:
    found = embeddings(features[:, :, None, None], normalize=False)
    np.testing.assert_array_equal(found, features.astype(np.float32))


def test_zeros_stay_zeros() -> None:
    np.testing.assert_array_equal(embeddings(np.zeros((2, 5), np.float32), normalize=True), np.zeros((2, 5)))
