"""Kernels of which a thread is a pixel, as CUDA source; the antialiased resize is ``resample_kernels``.

``interpolate`` is the definition's resize without antialiasing, *nearest* and plain copies: four pixels in float64.
``look_up`` brings levels to the network's values by a table, and ``write_rows`` to the rows of patches. ``rectify`` is
the perspective transform of a region, in whole numbers but for the places (``backends.reference.rectified``). All work
on a batch of pictures of different sizes: x and y of the grid go across and down, and z is a picture, described by one
``Work``. Threads share nothing, so that a C++ compiler runs the same source, thread after thread.
"""

from __future__ import annotations

import numpy as np

from onestream.preprocess.cuda.source_kernels import SOURCE

NEIGHBOURS = np.dtype([("first", np.int32), ("second", np.int32), ("share", np.float64)])
"""``Neighbours`` of the source: two source pixels, and the share, 0 to 1, of the second."""

TRANSFORM = np.dtype(
    [("factors", np.float64, 9), ("height", np.int32), ("width", np.int32), ("fill", np.int32)], align=True
)
"""``Transform`` of the source: from a rectangle to a picture of ``height`` and ``width`` (``projection.homographies``).

``fill``: the level beyond the picture; below 0 its border is repeated.
"""

KERNELS = (
    SOURCE
    + r"""
struct Neighbours {
    int first, second;
    double share;
};

// Sums of weights of 22 bits, cut to levels.
template <int CHANNELS>
__device__ void write_levels(const Work &work, unsigned char *pixel, const int *levels)
{
    for (int channel = 0; channel < CHANNELS; channel++) {
        pixel[work.to_bgr ? CHANNELS - 1 - channel : channel] = level_of(levels[channel] >> 22);
    }
}

// Rounded after each operation, as NumPy does: a compiler may not fuse these.
__device__ double between(double first, double second, double share)
{
    return __dadd_rn(first, __dmul_rn(share, __dadd_rn(second, -first)));
}

template <int CHANNELS>
__device__ void interpolate_pixel(const Work &work, int row, int column)
{
    const Neighbours down = ((const Neighbours *)work.rows)[row];
    const Neighbours across = ((const Neighbours *)work.columns)[column];
    unsigned char *pixel = work.target + row * work.target_pitch + (long long)column * CHANNELS;
    int levels[4][CHANNELS];
    source_pixel<CHANNELS>(work, down.first, across.first, levels[0]);
    source_pixel<CHANNELS>(work, down.second, across.first, levels[1]);
    source_pixel<CHANNELS>(work, down.first, across.second, levels[2]);
    source_pixel<CHANNELS>(work, down.second, across.second, levels[3]);
    for (int channel = 0; channel < CHANNELS; channel++) {
        double at_left = between(levels[0][channel], levels[1][channel], down.share);
        double at_right = between(levels[2][channel], levels[3][channel], down.share);
        unsigned char level = (unsigned char)__dadd_rn(between(at_left, at_right, across.share), 0.5);
        pixel[work.to_bgr ? CHANNELS - 1 - channel : channel] = level;
    }
}

extern "C" __global__ void interpolate(const Work *works)
{
    const Work &work = works[blockIdx.z];
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= work.height || column >= work.width)
        return;
    if (work.channels == 3)
        interpolate_pixel<3>(work, row, column);
    else
        interpolate_pixel<1>(work, row, column);
}

struct Transform {
    double factors[9];
    int height, width, fill;
};

// Where a pixel's centre comes to lie along one axis of the picture, ``side`` pixels long, in steps of 1/256 pixel:
// rounded after each operation, too. A division is never fused.
__device__ int steps(const double *factors, const double *divisors, double across, double down, int side)
{
    double dividend = __dadd_rn(__dadd_rn(__dmul_rn(factors[0], across), __dmul_rn(factors[1], down)), factors[2]);
    double divisor = __dadd_rn(__dadd_rn(__dmul_rn(divisors[0], across), __dmul_rn(divisors[1], down)), divisors[2]);
    double place = __dadd_rn(dividend / divisor, -0.5);
    place = place < -2.0 ? -2.0 : place > side + 1.0 ? side + 1.0 : place;
    return (int)floor(__dadd_rn(__dmul_rn(place, 256.0), 0.5));
}

__device__ int inside(int at, int side)
{
    return at < 0 ? 0 : at >= side ? side - 1 : at;
}

// ``rows`` is the Transform, ``columns`` are the weights: four neighbours' for each of the 256 steps.
template <int CHANNELS>
__device__ void rectify_pixel(const Work &work, int row, int column)
{
    const Transform &transform = *(const Transform *)work.rows;
    const double across = column + 0.5, down = row + 0.5, *divisors = transform.factors + 6;
    const int x = steps(transform.factors, divisors, across, down, transform.width);
    const int y = steps(transform.factors + 3, divisors, across, down, transform.height);
    unsigned char *pixel = work.target + row * work.target_pitch + (long long)column * CHANNELS;
    // Half a pixel, 128 steps, and more from the centres of the picture's outermost pixels.
    if (transform.fill >= 0
        && (x < -128 || y < -128 || x > transform.width * 256 - 128 || y > transform.height * 256 - 128)) {
        for (int channel = 0; channel < CHANNELS; channel++)
            pixel[channel] = transform.fill;
        return;
    }
    const int *weights = (const int *)work.columns, *along = weights + 4 * (x & 255), *below = weights + 4 * (y & 255);
    int levels[CHANNELS];
    for (int channel = 0; channel < CHANNELS; channel++)
        levels[channel] = 1 << 21;
    for (int line = 0; line < 4; line++) {
        const unsigned char *pixels = work.source + inside((y >> 8) - 1 + line, transform.height) * work.source_pitch;
        for (int tap = 0; tap < 4; tap++) {
            const unsigned char *from = pixels + CHANNELS * (long long)inside((x >> 8) - 1 + tap, transform.width);
            for (int channel = 0; channel < CHANNELS; channel++)
                levels[channel] += below[line] * along[tap] * from[channel];
        }
    }
    write_levels<CHANNELS>(work, pixel, levels);
}

extern "C" __global__ void rectify(const Work *works)
{
    const Work &work = works[blockIdx.z];
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= work.height || column >= work.width)
        return;
    if (work.channels == 3)
        rectify_pixel<3>(work, row, column);
    else
        rectify_pixel<1>(work, row, column);
}

// Of ``values`` there are 256 for each channel, of 1, 2 or 4 bytes each; they are copied bit by bit.
extern "C" __global__ void look_up(const Work *works, const void *values, int value_bytes, int planar)
{
    const Work &work = works[blockIdx.z];
    int column = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= work.height || column >= work.width)
        return;
    const unsigned char *pixel = work.source + row * work.source_pitch + (long long)column * work.channels;
    for (int channel = 0; channel < work.channels; channel++) {
        int from = channel * 256 + pixel[channel];
        long long place = (long long)row * work.width + column;
        long long to = planar ? (long long)channel * work.height * work.width + place : place * work.channels + channel;
        if (value_bytes == 4)
            ((unsigned int *)work.target)[to] = ((const unsigned int *)values)[from];
        else if (value_bytes == 2)
            ((unsigned short *)work.target)[to] = ((const unsigned short *)values)[from];
        else
            work.target[to] = ((const unsigned char *)values)[from];
    }
}

// A pixel's values go to their place in the row of its patch (``operations.Patches``), once for each frame.
extern "C" __global__ void write_rows(
    const Work *works, const void *values, int value_bytes, int patch, int temporal, int square, int interleaved)
{
    const Work &work = works[blockIdx.z];
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (y >= work.height || x >= work.width)
        return;
    const unsigned char *pixel = work.source + y * work.source_pitch + (long long)x * work.channels;
    int down = y / patch, across = x / patch, area = patch * patch, inside = y % patch * patch + x % patch;
    long long token = (long long)(down / square) * (work.width / patch / square) + across / square;
    long long row = (token * square + down % square) * square + across % square;
    for (int channel = 0; channel < work.channels; channel++) {
        int from = channel * 256 + pixel[channel];
        for (int frame = 0; frame < temporal; frame++) {
            int place = interleaved ? (frame * area + inside) * work.channels + channel
                                    : (channel * temporal + frame) * area + inside;
            long long to = row * work.channels * temporal * area + place;
            if (value_bytes == 4)
                ((unsigned int *)work.target)[to] = ((const unsigned int *)values)[from];
            else if (value_bytes == 2)
                ((unsigned short *)work.target)[to] = ((const unsigned short *)values)[from];
            else
                work.target[to] = ((const unsigned char *)values)[from];
        }
    }
}
"""
)
