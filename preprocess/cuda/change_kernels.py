"""Changes of a picture's levels as one CUDA source: Pillow's arithmetic on 8 bit, so that every bit is the reference's.

Like ``resize_kernels`` all work on a batch of pictures of different sizes: a thread is a pixel (x across, y down), and
z of the grid a picture, described by one ``Change``. Threads share nothing but the counts of levels, whose sums do not
depend on an order, so that a C++ compiler runs the same source, thread after thread. Of the kernels that make tables a
thread is an entry: x a level, y a channel.
"""

from __future__ import annotations

import numpy as np

CHANGE = np.dtype(
    [
        ("pixels", np.uint64),
        ("before", np.uint64),
        ("counts", np.uint64),
        ("table", np.uint64),
        ("pitch", np.int64),
        ("height", np.int32),
        ("width", np.int32),
        ("factors", np.float32, 12),
        ("fill", np.int32),
        ("channels", np.uint8),
        ("bgr", np.bool_),
    ],
    align=True,
)
"""``Change`` of the source. ``pixels`` are ``pitch`` bytes apart from row to row; ``before`` is a copy without gaps.

``counts``: of each level of each channel, and then of luma, uint32. ``table``: what becomes of each level of each
channel, uint8. ``factors`` are those of ``changes.Linear``, or a single one first. ``fill``: what ``erase`` writes,
of 24 bits red the lowest 8 and blue the highest, or how far ``turn_hue`` turns.
"""

CHANGE_KERNELS = r"""
struct Change {
    unsigned char *pixels, *before;
    unsigned int *counts;
    unsigned char *table;
    long long pitch;
    int height, width;
    float factors[12];
    int fill;
    unsigned char channels;
    bool bgr;
};

__device__ bool place(const Change &change, int &row, int &column)
{
    column = blockIdx.x * blockDim.x + threadIdx.x;
    row = blockIdx.y * blockDim.y + threadIdx.y;
    return row < change.height && column < change.width;
}

__device__ unsigned char *pixel_at(const Change &change, int row, int column)
{
    return change.pixels + row * change.pitch + (long long)column * change.channels;
}

// This thread's pixel, or null beyond the picture.
__device__ unsigned char *own_pixel(const Change &change)
{
    int row, column;
    return place(change, row, column) ? pixel_at(change, row, column) : nullptr;
}

// Pillow's conversion of RGB to L (L24 in Convert.c).
__device__ int luma(const Change &change, const unsigned char *pixel)
{
    if (change.channels == 1)
        return pixel[0];
    return (pixel[change.bgr ? 2 : 0] * 19595 + pixel[1] * 38470 + pixel[change.bgr ? 0 : 2] * 7471 + 0x8000) >> 16;
}

// Pillow's mixture (Blend.c), rounded after each operation: a compiler may not fuse these.
__device__ unsigned char mixed(int first, int second, float share)
{
    float level = __fadd_rn((float)first, __fmul_rn(share, (float)(second - first)));
    return level <= 0.0f ? 0 : level >= 255.0f ? 255 : (unsigned char)level;
}

extern "C" __global__ void recolor(const Change *changes)
{
    const Change &change = changes[blockIdx.z];
    unsigned char *pixel = own_pixel(change);
    if (!pixel)
        return;
    float levels[3] = {0.0f, 0.0f, 0.0f};
    for (int channel = 0; channel < change.channels; channel++)
        levels[channel] = pixel[channel];
    const float *factors = change.factors;
    for (int channel = 0; channel < change.channels; channel++) {
        float level = __fmul_rn(levels[0], factors[0]);
        for (int source = 1; source < change.channels; source++)
            level = __fadd_rn(level, __fmul_rn(levels[source], factors[source]));
        level = __fadd_rn(__fadd_rn(level, factors[change.channels]), 0.5f);
        pixel[channel] = level <= 0.0f ? 0 : level >= 255.0f ? 255 : (unsigned char)level;
        factors += change.channels + 1;
    }
}

extern "C" __global__ void by_table(const Change *changes)
{
    const Change &change = changes[blockIdx.z];
    unsigned char *pixel = own_pixel(change);
    if (!pixel)
        return;
    for (int channel = 0; channel < change.channels; channel++)
        pixel[channel] = change.table[channel * 256 + pixel[channel]];
}

extern "C" __global__ void saturate(const Change *changes)
{
    const Change &change = changes[blockIdx.z];
    unsigned char *pixel = own_pixel(change);
    if (!pixel)
        return;
    const int gray = luma(change, pixel);
    for (int channel = 0; channel < change.channels; channel++)
        pixel[channel] = mixed(gray, pixel[channel], change.factors[0]);
}

// Pillow's HSV of 8 bit (Convert.c) there and back, with the hue turned by ``fill`` steps of 256: float and double
// where it has them.
extern "C" __global__ void turn_hue(const Change *changes)
{
    const Change &change = changes[blockIdx.z];
    unsigned char *pixel = own_pixel(change);
    if (!pixel)
        return;
    const int at_red = change.bgr ? 2 : 0, at_blue = 2 - at_red;
    const int red = pixel[at_red], green = pixel[1], blue = pixel[at_blue];
    int value = red > green ? red : green, least = red < green ? red : green;
    value = blue > value ? blue : value;
    least = blue < least ? blue : least;
    if (value == least)
        return;
    const float range = (float)(value - least);
    const float to_red = (float)(value - red) / range, to_green = (float)(value - green) / range;
    const float to_blue = (float)(value - blue) / range;
    float sixths;
    if (red == value)
        sixths = __fadd_rn(to_blue, -to_green);
    else if (green == value)
        sixths = (float)__dadd_rn(__dadd_rn(2.0, (double)to_red), -(double)to_blue);
    else
        sixths = (float)__dadd_rn(__dadd_rn(4.0, (double)to_green), -(double)to_red);
    const double turns = __dadd_rn((double)sixths / 6.0, 1.0);
    const int hue = (int)__dmul_rn((double)(float)(turns >= 1.0 ? turns - 1.0 : turns), 255.0);
    const int saturation = (int)__dmul_rn((double)(range / (float)value), 255.0);
    const double angle = __dmul_rn((double)((hue + change.fill) & 255), 6.0) / 255.0;
    const int sector = (int)angle;
    const float along = (float)__dadd_rn(angle, -(double)sector), colored = (float)(saturation / 255.0);
    const double shares[3] = {
        (double)colored, (double)__fmul_rn(colored, along), __dmul_rn((double)colored, __dadd_rn(1.0, -(double)along))};
    int levels[4];
    for (int at = 0; at < 3; at++)
        levels[at] = (int)round(__dmul_rn((double)value, __dadd_rn(1.0, -shares[at])));
    levels[3] = value;
    // Which are red, green and blue in each sector: the lowest (0), the falling (1), the rising (2) or the value (3).
    const unsigned char order[6][3] = {{3, 2, 0}, {1, 3, 0}, {0, 3, 2}, {0, 1, 3}, {2, 0, 3}, {3, 0, 1}};
    pixel[at_red] = levels[saturation ? order[sector % 6][0] : 3];
    pixel[1] = levels[saturation ? order[sector % 6][1] : 3];
    pixel[at_blue] = levels[saturation ? order[sector % 6][2] : 3];
}

extern "C" __global__ void erase(const Change *changes)
{
    const Change &change = changes[blockIdx.z];
    unsigned char *pixel = own_pixel(change);
    if (!pixel)
        return;
    for (int channel = 0; channel < change.channels; channel++)
        pixel[channel] = change.fill >> 8 * (change.bgr && change.channels == 3 ? 2 - channel : channel);
}

extern "C" __global__ void keep(const Change *changes)
{
    const Change &change = changes[blockIdx.z];
    int row, column;
    if (!place(change, row, column))
        return;
    const unsigned char *pixel = pixel_at(change, row, column);
    unsigned char *kept = change.before + ((long long)row * change.width + column) * change.channels;
    for (int channel = 0; channel < change.channels; channel++)
        kept[channel] = pixel[channel];
}

// A row of Pillow's SMOOTH: three neighbours with the weights 1, ``middle`` and 1 of 13.
__device__ float smoothed_row(const unsigned char *level, int step, float middle)
{
    const float side = 1.0f / 13.0f;
    float sum = __fadd_rn(__fmul_rn((float)level[-step], side), __fmul_rn((float)level[0], middle));
    return __fadd_rn(sum, __fmul_rn((float)level[step], side));
}

// Pillow's filter (Filter.c) goes from the row below to the one above, and leaves the outermost pixels as they are.
extern "C" __global__ void sharpen(const Change *changes)
{
    const Change &change = changes[blockIdx.z];
    int row, column;
    if (!place(change, row, column))
        return;
    if (row == 0 || column == 0 || row == change.height - 1 || column == change.width - 1)
        return;
    unsigned char *pixel = pixel_at(change, row, column);
    const int step = change.channels, line = change.width * change.channels;
    const unsigned char *kept = change.before + (long long)row * line + (long long)column * step;
    for (int channel = 0; channel < change.channels; channel++) {
        float level = __fadd_rn(0.5f, smoothed_row(kept + channel + line, step, 1.0f / 13.0f));
        level = __fadd_rn(level, smoothed_row(kept + channel, step, 5.0f / 13.0f));
        level = __fadd_rn(level, smoothed_row(kept + channel - line, step, 1.0f / 13.0f));
        int smooth = level >= 255.0f ? 255 : (int)level;
        pixel[channel] = mixed(smooth, kept[channel], change.factors[0]);
    }
}

extern "C" __global__ void count_levels(const Change *changes)
{
    const Change &change = changes[blockIdx.z];
    const unsigned char *pixel = own_pixel(change);
    if (!pixel)
        return;
    for (int channel = 0; channel < change.channels; channel++)
        atomicAdd(change.counts + channel * 256 + pixel[channel], 1u);
    atomicAdd(change.counts + change.channels * 256 + luma(change, pixel), 1u);
}

extern "C" __global__ void contrast_table(const Change *changes)
{
    const Change &change = changes[blockIdx.z];
    int channel, level;
    if (!place(change, channel, level))
        return;
    const unsigned int *counts = change.counts + change.channels * 256;
    long long sum = 0, pixels = 0;
    for (int at = 0; at < 256; at++) {
        sum += (long long)at * counts[at];
        pixels += counts[at];
    }
    const int mean = (int)__dadd_rn((double)sum / (double)pixels, 0.5);
    change.table[channel * 256 + level] = mixed(mean, level, change.factors[0]);
}

extern "C" __global__ void autocontrast_table(const Change *changes)
{
    const Change &change = changes[blockIdx.z];
    int channel, level;
    if (!place(change, channel, level))
        return;
    const unsigned int *counts = change.counts + channel * 256;
    int low = 0, high = 255;
    while (low < 255 && !counts[low])
        low++;
    while (high > 0 && !counts[high])
        high--;
    int stretched = level;
    if (high > low) {
        const double scale = 255.0 / (high - low);
        const double value = __dadd_rn(__dmul_rn((double)level, scale), __dmul_rn((double)-low, scale));
        stretched = value <= 0.0 ? 0 : value >= 255.0 ? 255 : (int)value;
    }
    change.table[channel * 256 + level] = stretched;
}

extern "C" __global__ void equalize_table(const Change *changes)
{
    const Change &change = changes[blockIdx.z];
    int channel, level;
    if (!place(change, channel, level))
        return;
    const unsigned int *counts = change.counts + channel * 256;
    unsigned int sum = 0, below = 0, last = 0;
    for (int at = 0; at < 256; at++) {
        below += at < level ? counts[at] : 0;
        sum += counts[at];
        last = counts[at] ? counts[at] : last;
    }
    // Of a single level nothing is left, so that its step is 0, too.
    const unsigned int step = (sum - last) / 255;
    const unsigned int evened = step ? (step / 2 + below) / step : level;
    change.table[channel * 256 + level] = evened > 255 ? 255 : evened;
}
"""
