"""The loops that find lines in a map of probabilities, compiled by Numba when this module is first imported and cached.

Everything up to the rectangle is in whole numbers: nothing depends on the order of floats' operations. The global
interpreter lock is released.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from onestream.preprocess.cpu.loops import compiled

_Map = npt.NDArray[np.float32]
_Ids = npt.NDArray[np.int32]
_Whole = npt.NDArray[np.int64]

_LARGEST = np.finfo(np.float32).max
_RECTANGLE = 6


@compiled("int64(float32[:,::1], float32, int64, int32[:,::1])")
def find_runs(values: _Map, threshold: np.float32, reach: int, runs: _Ids) -> int:
    """Fill ``runs`` with the runs of cells above the threshold, row by row: row, first and last column; how many.

    Cells of a row that are at most ``reach`` columns apart are one run. What is not finite is not above.
    """
    count = 0
    for row in range(values.shape[0]):
        last = -reach - 1
        for column in range(values.shape[1]):
            value = values[row, column]
            if value > threshold and value <= _LARGEST:
                if column - last > reach:
                    runs[count, 0], runs[count, 1] = row, column
                    count += 1
                runs[count - 1, 2] = column
                last = column
    return count


@compiled("int64(int32[:,::1], int64, int32[::1])")
def join_runs(runs: _Ids, reach: int, group: _Ids) -> int:
    """Number the groups of runs that are connected, in ``group`` for each run, from 0 in the order of their first runs.

    Runs are connected where cells of theirs are at most ``reach`` rows and columns apart. Returns how many groups.
    """
    for run in range(len(runs)):
        group[run] = run
    for below in range(1, reach + 1):
        above = 0
        for run in range(len(runs)):
            row, first, last = runs[run, 0] - below, runs[run, 1] - reach, runs[run, 2] + reach
            # Runs that end before this one begins also end before the next of its row does.
            while above < run and (runs[above, 0] < row or (runs[above, 0] == row and runs[above, 2] < first)):
                above += 1
            other = above
            while other < run and runs[other, 0] == row and runs[other, 1] <= last:
                one, two = run, other
                while group[one] != one:
                    group[one] = group[group[one]]
                    one = group[one]
                while group[two] != two:
                    group[two] = group[group[two]]
                    two = group[two]
                group[max(one, two)] = min(one, two)
                other += 1
    count = 0
    for run in range(len(runs)):
        # The first run of a group is its own root, and the root of every later one has a number by now.
        if group[run] == run:
            group[run] = count
            count += 1
        else:
            group[run] = group[group[run]]
    return count


@compiled("int64(int32[:,::1], int64, int64, int64[:,::1])")
def hull_of(runs: _Ids, grown: int, levels: int, hull: _Whole) -> int:
    """Fill ``hull`` with the corners (x, y) of the convex hull of a group's runs, in order round it; how many.

    With ``grown`` 0 the points are the cells' own, by column and row; with 1 each cell is also its neighbours to the
    right and below: the points are then the corners of the cells. ``levels`` is how many values y has.
    """
    top = runs[0, 0]
    left = np.full(levels, np.iinfo(np.int64).max, np.int64)
    right = np.full(levels, -1, np.int64)
    for run in range(len(runs)):
        for level in range(runs[run, 0] - top, runs[run, 0] - top + grown + 1):
            left[level] = min(left[level], runs[run, 1])
            right[level] = max(right[level], runs[run, 2] + grown)
    count = 0
    # Down the left side, then up the right side: at each corner the way turns to the same hand.
    for side in range(2):
        begin = count
        for step in range(levels):
            level = step if side == 0 else levels - 1 - step
            if right[level] < 0:
                continue
            x = left[level] if side == 0 else right[level]
            y = top + level
            while count - begin >= 2:
                x1, y1 = hull[count - 1, 0], hull[count - 1, 1]
                x2, y2 = hull[count - 2, 0], hull[count - 2, 1]
                if (x1 - x2) * (y - y2) - (y1 - y2) * (x - x2) < 0:
                    break
                count -= 1
            hull[count, 0], hull[count, 1] = x, y
            count += 1
    return count


@compiled("boolean(int64[:,::1], int64[::1])")
def smallest_rectangle(hull: _Whole, rectangle: _Whole) -> bool:
    """The rectangle of the least area round a convex polygon, as (dx, dy, u0, u1, v0, v1); whether there is one.

    It has a side along an edge of the polygon (Freeman and Shapira, 1975): (dx, dy). A point is in it where
    x dx + y dy is in u0 to u1, and y dx - x dy in v0 to v1.
    """
    least, found = np.inf, False
    for corner in range(len(hull)):
        following = (corner + 1) % len(hull)
        dx, dy = hull[following, 0] - hull[corner, 0], hull[following, 1] - hull[corner, 1]
        if dx == 0 and dy == 0:
            continue
        u0 = u1 = hull[0, 0] * dx + hull[0, 1] * dy
        v0 = v1 = hull[0, 1] * dx - hull[0, 0] * dy
        for point in range(1, len(hull)):
            u = hull[point, 0] * dx + hull[point, 1] * dy
            v = hull[point, 1] * dx - hull[point, 0] * dy
            u0, u1, v0, v1 = min(u0, u), max(u1, u), min(v0, v), max(v1, v)
        area = float(u1 - u0) * float(v1 - v0) / float(dx * dx + dy * dy)
        if area < least:
            least, found = area, True
            rectangle[0], rectangle[1] = dx, dy
            rectangle[2], rectangle[3], rectangle[4], rectangle[5] = u0, u1, v0, v1
    return found


@compiled("float64(float32[:,::1], int64[::1], int64, int64)")
def mean_inside(values: _Map, rectangle: _Whole, first_row: int, last_row: int) -> float:
    """The mean of the cells whose column and row lie in a rectangle, its border included; what is not finite is 0.

    ``first_row`` to ``last_row`` are those of the map that the rectangle may reach.
    """
    dx, dy = rectangle[0], rectangle[1]
    total, count = 0.0, 0
    for row in range(max(0, first_row), min(values.shape[0] - 1, last_row) + 1):
        low, high = 0, values.shape[1] - 1
        # x dx is in u0 - y dy to u1 - y dy, and x dy in y dx - v1 to y dx - v0.
        for factor, start, stop in (
            (dx, rectangle[2] - row * dy, rectangle[3] - row * dy),
            (dy, row * dx - rectangle[5], row * dx - rectangle[4]),
        ):
            if factor == 0:
                if start > 0 or stop < 0:
                    high = -1
                continue
            if factor < 0:
                factor, start, stop = -factor, -stop, -start
            low, high = max(low, -(-start // factor)), min(high, stop // factor)
        for column in range(low, high + 1):
            value = values[row, column]
            count += 1
            if abs(value) <= _LARGEST:
                total += value
    return total / count if count else 0.0


@compiled(
    "int64(float32[:,::1], int32[:,::1], int64[::1], int64, float64, float64, float64, float64[:,:,::1], float64[::1])"
)
def rectangles_of(
    values: _Map,
    runs: _Ids,
    ends: _Whole,
    grown: int,
    min_side: float,
    least_score: float,
    ratio: float,
    quads: npt.NDArray[np.float64],
    scores: npt.NDArray[np.float64],
) -> int:
    """Fill ``quads`` and ``scores`` with the lines among groups of runs; how many.

    ``runs`` are those of group 0 up to ``ends[0]``, then those of group 1, and so on. A quad is four corners in order,
    (x, y), of a rectangle that has grown by its area times ``ratio``, divided by its perimeter.
    """
    hull = np.empty((2 * (values.shape[0] + 2), 2), np.int64)
    rectangle = np.empty(_RECTANGLE, np.int64)
    count = begin = 0
    for end in ends:
        own = runs[begin:end]
        begin = end
        levels = own[-1, 0] - own[0, 0] + grown + 1
        corners = hull_of(own, grown, levels, hull)
        if not smallest_rectangle(hull[:corners], rectangle):
            continue
        dx, dy = float(rectangle[0]), float(rectangle[1])
        length = np.sqrt(dx * dx + dy * dy)
        wide, tall = (rectangle[3] - rectangle[2]) / length, (rectangle[5] - rectangle[4]) / length
        if min(wide, tall) < min_side:
            continue
        # The rectangle may reach beyond its points by no more than its shorter side.
        beyond = int(min(wide, tall)) + 1
        score = mean_inside(values, rectangle, own[0, 0] - beyond, own[-1, 0] + grown + beyond)
        if score < least_score:
            continue
        # Moved outwards with round joins, the smallest rectangle round it is the rectangle with its sides moved.
        grow = wide * tall * ratio / (2 * (wide + tall))
        u = (rectangle[2] / length - grow, rectangle[3] / length + grow)
        v = (rectangle[4] / length - grow, rectangle[5] / length + grow)
        for corner in range(4):
            along, across = u[1 if corner in (1, 2) else 0], v[corner // 2]
            quads[count, corner, 0] = (along * dx - across * dy) / length
            quads[count, corner, 1] = (along * dy + across * dx) / length
        scores[count] = score
        count += 1
    return count
