"""The matte's kernels for a GPU, in CUDA C++: integers only, the sums of ``composer`` and ``blur_reference``.

A frame lies in memory as ``onestream.postprocess.planes_gpu`` says.
"""

from __future__ import annotations

from onestream.postprocess.planes_gpu import PLANES

KERNELS = (
    PLANES
    + r"""
__device__ int clamped(int value, int most)
{
    return value < 0 ? 0 : value > most ? most : value;
}

__device__ int mixed(int first, int second, int weight)
{
    return (first * (256 - weight) + second * weight + 128) >> 8;
}

// Positions are in 256ths of an entry: columns are mixed first, then rows, each rounded.
__device__ int stretched(const unsigned char *small, int height, int width, int down, int across)
{
    int left = across >> 8, right = clamped(left + 1, width - 1);
    const unsigned char *above = small + (long long)(down >> 8) * width;
    const unsigned char *below = small + (long long)clamped((down >> 8) + 1, height - 1) * width;
    return mixed(mixed(above[left], above[right], across & 255), mixed(below[left], below[right], across & 255),
        down & 255);
}

extern "C" __global__ void matte_compose(
    unsigned char *frame, const unsigned char *back, const unsigned char *matte, int matte_height, int matte_width,
    const int *rows, const int *columns, int height, int width, int chroma_height, int chroma_width)
{
    int number, row, column;
    if (!own_sample(height, width, chroma_height, chroma_width, number, row, column))
        return;
    Plane plane = plane_of(number, height, width, chroma_height, chroma_width);
    int level = stretched(matte, matte_height, matte_width,
        rows[(number ? height : 0) + row], columns[(number ? width : 0) + column]);
    long long at = plane.offset + (long long)row * plane.width + column;
    frame[at] = (level * frame[at] + (255 - level) * back[at] + 127) / 255;
}

extern "C" __global__ void matte_cell_means(
    const unsigned char *frame, int height, int width, int chroma_height, int chroma_width,
    int cell, int chroma_cell_height, int chroma_cell_width, unsigned char *cells, int cell_rows, int cell_columns)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= 3 * cell_rows || column >= cell_columns)
        return;
    int number = row / cell_rows;
    Plane plane = plane_of(number, height, width, chroma_height, chroma_width);
    int cell_height = number ? chroma_cell_height : cell, cell_width = number ? chroma_cell_width : cell;
    int top = (row - number * cell_rows) * cell_height, left = column * cell_width;
    int total = 0, count = cell_height * cell_width;
    for (int down = 0; down < cell_height; down++) {
        const unsigned char *line =
            frame + plane.offset + (long long)clamped(top + down, plane.height - 1) * plane.width;
        for (int across = 0; across < cell_width; across++)
            total += line[clamped(left + across, plane.width - 1)];
    }
    cells[(long long)row * cell_columns + column] = (total + count / 2) / count;
}

extern "C" __global__ void matte_box_filter(
    const unsigned char *cells, unsigned char *filtered, int cell_rows, int cell_columns, int reach, int along_rows)
{
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= 3 * cell_rows || column >= cell_columns)
        return;
    int top = row / cell_rows * cell_rows, total = 0;
    for (int step = -reach; step <= reach; step++) {
        int from_row = along_rows ? row : top + clamped(row - top + step, cell_rows - 1);
        int from_column = along_rows ? clamped(column + step, cell_columns - 1) : column;
        total += cells[(long long)from_row * cell_columns + from_column];
    }
    filtered[(long long)row * cell_columns + column] = (total * (65536 / (2 * reach + 1)) + 32768) >> 16;
}

extern "C" __global__ void matte_stretch_cells(
    const unsigned char *cells, int cell_rows, int cell_columns, const int *rows, const int *columns,
    unsigned char *back, int height, int width, int chroma_height, int chroma_width)
{
    int number, row, column;
    if (!own_sample(height, width, chroma_height, chroma_width, number, row, column))
        return;
    Plane plane = plane_of(number, height, width, chroma_height, chroma_width);
    back[plane.offset + (long long)row * plane.width + column] = stretched(
        cells + (long long)number * cell_rows * cell_columns, cell_rows, cell_columns,
        rows[(number ? height : 0) + row], columns[(number ? width : 0) + column]);
}
"""
)
"""- ``matte_compose``: the frame over ``back`` by ``matte``, in place;
- ``matte_cell_means``, ``matte_box_filter``, ``matte_stretch_cells``: the frame's blur, by way of cells (3, rows,
  columns).

``rows`` and ``columns`` are the positions of ``stretch.steps`` in 256ths, luma's, then chroma's."""

NAMES = ("matte_compose", "matte_cell_means", "matte_box_filter", "matte_stretch_cells")
