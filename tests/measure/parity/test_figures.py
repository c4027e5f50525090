"""How the comparisons of several images become one row of figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onestream.preprocess.tolerances import Comparison
from onestream.serving.building.figures import Figures

SHARES = st.floats(0, 1)
COMPARISONS = st.lists(
    st.builds(
        Comparison,
        max=st.floats(0, 255),
        mean=st.floats(0, 255),
        percentile_99_9=st.floats(0, 255),
        share_different=SHARES,
        share_above_one=SHARES,
        within=st.booleans(),
    ),
    min_size=1,
    max_size=5,
)
WORST = ("max", "percentile_99_9", "share_different", "share_above_one")


@given(COMPARISONS)
def test_a_row_is_the_worst_image_and_the_mean_of_means(comparisons: list[Comparison]) -> None:
    figures = Figures.of(comparisons)
    # Figures are rounded to six digits after the point.
    for name in WORST:
        assert getattr(figures, name) == pytest.approx(max(getattr(one, name) for one in comparisons), abs=1e-6)
    means = [one.mean for one in comparisons]
    assert figures.mean == pytest.approx(sum(means) / len(means), abs=1e-6)
    assert figures.within == all(one.within for one in comparisons)
