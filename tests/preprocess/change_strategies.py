"""Hypothesis strategies for changes of levels."""

from __future__ import annotations

from hypothesis import strategies as st

from onestream.preprocess import changes
from onestream.preprocess.operations import Color

SHORT = st.integers(1, 40)
FACTORS = st.floats(0, 3) | st.sampled_from([0.0, 0.01, 0.99, 1.0, 1.99])


@st.composite
def changes_of_levels(draw: st.DrawFn, color: Color) -> changes.AnyChange:
    """Of every kind that a GPU makes, with any strength."""
    channels = 1 if color == "gray" else 3
    factors = st.lists(st.floats(-2, 2, width=32), min_size=channels, max_size=channels)
    added = st.floats(-300, 300, width=32)
    level = st.integers(0, 255)
    fills = level if channels == 1 else st.one_of(level, st.tuples(level, level, level))
    row = st.tuples(factors, added).map(lambda found: (*found[0], found[1]))
    return draw(
        st.one_of(
            st.lists(row, min_size=channels, max_size=channels).map(lambda rows: changes.Linear(factors=tuple(rows))),
            FACTORS.map(lambda factor: changes.Brightness(factor=factor)),
            FACTORS.map(lambda factor: changes.Contrast(factor=factor)),
            FACTORS.map(lambda factor: changes.Saturation(factor=factor)),
            st.floats(-0.5, 0.5).map(lambda turns: changes.Hue(turns=turns)),
            FACTORS.map(lambda factor: changes.Sharpness(factor=factor)),
            st.integers(1, 8).map(lambda bits: changes.Posterize(bits=bits)),
            st.integers(0, 256).map(lambda threshold: changes.Solarize(threshold=threshold)),
            st.just(changes.AutoContrast()),
            st.just(changes.Equalize()),
            st.just(changes.Invert()),
            st.builds(changes.Erase, top=SHORT, left=SHORT, height=SHORT, width=SHORT, fill=fills),
        )
    )
