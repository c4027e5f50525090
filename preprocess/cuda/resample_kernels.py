"""Pillow's resize as one kernel: both passes a tile, so that what lies between them never leaves the chip.

A block makes ``TILE`` x ``TILE`` pixels. It goes over the source that these read in pieces of 32 lines, and of each in
pieces of 256 pixels: it stages a piece in shared memory, adds the first pass's taps, rounds to 8 bits as Pillow does,
and adds the taps that the second pass has in these lines. So shared memory and registers do not depend on the scale.

**Lanes are lines.** A warp makes the same output pixel of 32 lines, hence all lanes have the same weights and read the
same word of lines that lie an odd number of words apart: no two lanes meet in a bank. What the first pass makes is
stored the other way round, so that the second one is the same code.

**Four taps a word.** Each channel lies by itself, four pixels a word, and ``__dp4a`` multiplies four signed bytes. A
weight of 23 bits is therefore three signed digits of base 256, and a level 128 less, which the start value makes up
for. All sums are those of Pillow, modulo 2^32, in which its own fit.
"""

from __future__ import annotations

from onestream.preprocess.cuda.source_kernels import SOURCE

TILE = 32
"""Pixels of a block's tile, down and across."""

BLOCK = (32, 8)
"""Threads of a block, (across, down)."""

ENTRY = 16
"""Bytes of an entry of a table (``line_tables``): of each output pixel one, and then one for each word of its taps.

A pixel's are its first word, the number of words, what its sum starts from (half a unit, and 128 times all weights),
and its first entry of weights. A word's are the upper, middle and lower digits of four weights, and nothing.
"""

RESAMPLE_KERNELS = (
    SOURCE
    + r"""
const int LANES = 32, WARPS = 8, TILE = 32, PART = TILE / WARPS;
// Words of a line: of the staged source, of what the first pass makes, and how many lie between two lines of each.
const int STAGED = 64, MADE = LANES / 4, STAGED_STEP = STAGED + 1, MADE_STEP = MADE + 1;

// The words that ``count`` output pixels from ``pixel`` on read; they may go backwards.
__device__ void words_of(const int4 *table, int pixel, int count, int &begin, int &end)
{
    const int4 one = __ldg(table + pixel), other = __ldg(table + pixel + count - 1);
    begin = min(one.x, other.x);
    end = max(one.x + one.y, other.x + other.y);
}

// Adds the taps of an output pixel that lie in words ``begin`` to ``end``, which are at ``line``.
template <int CHANNELS>
__device__ void add_taps(int *sums, const int4 *table, int pixel, int begin, int end, const int *line, int channel_step)
{
    const int4 taps = __ldg(table + pixel);
    const int first = max(taps.x, begin), last = min(taps.x + taps.y, end);
    if (first >= last)
        return;
    unsigned int entry = taps.w + first - taps.x;
    line += first - begin;
    int high[CHANNELS] = {}, middle[CHANNELS] = {}, low[CHANNELS] = {};
#pragma unroll 1
    for (int left = last - first; left > 0; left--) {
        const int4 weight = __ldg(table + entry++);
        for (int channel = 0; channel < CHANNELS; channel++) {
            const int four = line[channel * channel_step];
            high[channel] = __dp4a(four, weight.x, high[channel]);
            middle[channel] = __dp4a(four, weight.y, middle[channel]);
            low[channel] = __dp4a(four, weight.z, low[channel]);
        }
        line++;
    }
    for (int channel = 0; channel < CHANNELS; channel++)
        sums[channel] += high[channel] * 65536 + middle[channel] * 256 + low[channel];
}

// Stages pixel by pixel: YUV, and lines that are columns.
template <int CHANNELS>
__device__ void stage_pixels(const Work &work, int line, int lines, int word, int words, int *staged)
{
    const int pixels = work.columns_first ? work.source_height : work.source_width;
    const bool lines_are_neighbours = work.columns_first != (work.yuv && !work.yuv->across[2]);
    for (int at = threadIdx.y * LANES + threadIdx.x; at < LANES * words; at += LANES * WARPS) {
        const int lane = lines_are_neighbours ? at % LANES : at / words;
        const int along = lines_are_neighbours ? at / LANES : at % words;
        if (lane >= lines)
            continue;
        unsigned int packed[CHANNELS] = {};
        for (int pixel = 0; pixel < 4; pixel++) {
            // Beyond the source weights are 0.
            const int place = min(4 * (word + along) + pixel, pixels - 1);
            int levels[CHANNELS];
            source_pixel<CHANNELS>(
                work, work.columns_first ? place : line + lane, work.columns_first ? line + lane : place, levels);
            for (int channel = 0; channel < CHANNELS; channel++)
                packed[channel] |= levels[channel] << 8 * pixel;
        }
        for (int channel = 0; channel < CHANNELS; channel++)
            staged[(channel * LANES + lane) * STAGED_STEP + along] = packed[channel] ^ 0x80808080u;
    }
}

// Four pixels of three interleaved bytes, which begin ``shift`` bits within ``raw``, to a word for each channel.
template <int CHANNELS>
__device__ void put_four(const unsigned int *raw, int shift, int *staged)
{
    unsigned int bytes[3], rgb[3];
    for (int word = 0; word < 3; word++)
        bytes[word] = __funnelshift_r(raw[word], raw[word + 1], shift);
    rgb[0] = __byte_perm(__byte_perm(bytes[0], bytes[1], 0x0630), bytes[2], 0x5210);
    rgb[1] = __byte_perm(__byte_perm(bytes[0], bytes[1], 0x0741), bytes[2], 0x6210);
    rgb[2] = __byte_perm(__byte_perm(bytes[0], bytes[1], 0x0052), bytes[2], 0x7410);
    if (CHANNELS == 1) {
        unsigned int gray = 0;
        for (int at = 0; at < 32; at += 8)
            gray |= gray_level(rgb[0] >> at & 255, rgb[1] >> at & 255, rgb[2] >> at & 255) << at;
        rgb[0] = gray;
    }
    for (int channel = 0; channel < CHANNELS; channel++)
        staged[channel * LANES * STAGED_STEP] = rgb[channel] ^ 0x80808080u;
}

// Stages rows of RGB, sixteen pixels a thread, by 16 aligned bytes of which every time one at least is the row's.
template <int CHANNELS>
__device__ void stage_rows(const Work &work, int line, int lines, int word, int words, int *staged)
{
    // From here on 32 bits hold an offset: a row has less than 2^26 bytes.
    const unsigned char *first = work.source + (work.top + line) * work.source_pitch + 3 * (long long)work.left;
    const int before = (int)((unsigned long long)first & 15), pitch = (int)work.source_pitch;
    const int4 *memory = (const int4 *)(first - before);
    const int row_bytes = 3 * work.source_width, thread = threadIdx.y * LANES + threadIdx.x, units = (words + 3) / 4;
    const int more_lines = LANES * WARPS / units, more_units = LANES * WARPS % units;
    int lane = thread / units, unit = thread % units;
    while (lane < lines) {
        const int begin = 12 * word + 48 * unit, offset = lane * pitch + begin + before;
        const int bytes = row_bytes - begin + (offset & 15);
        unsigned int raw[16];
        for (int at = 0; at < 4; at++) {
            const int4 loaded = 16 * at < bytes ? __ldg(memory + (offset >> 4) + at) : int4();
            raw[4 * at] = loaded.x;
            raw[4 * at + 1] = loaded.y;
            raw[4 * at + 2] = loaded.z;
            raw[4 * at + 3] = loaded.w;
        }
        for (int at = 0; at < 14; at++)
            raw[at] = offset & 8 ? raw[at + 2] : raw[at];
        for (int at = 0; at < 13; at++)
            raw[at] = offset & 4 ? raw[at + 1] : raw[at];
        for (int four = 0; four < 4; four++)
            put_four<CHANNELS>(raw + 3 * four, 8 * (offset & 3), staged + lane * STAGED_STEP + 4 * unit + four);
        lane += more_lines;
        unit += more_units;
        if (unit >= units) {
            unit -= units;
            lane++;
        }
    }
}

// Writes a row of bytes by words of the memory, and the ends that fill none byte by byte.
__device__ void write_row(const unsigned char *bytes, unsigned char *target, int count)
{
    const int begin = 4 * threadIdx.x - (int)((unsigned long long)target & 3);
    if (begin >= 0 && begin + 4 <= count) {
        unsigned int packed = 0;
        for (int at = 0; at < 4; at++)
            packed |= (unsigned int)bytes[begin + at] << 8 * at;
        *(unsigned int *)(target + begin) = packed;
        return;
    }
    for (int at = begin; at < begin + 4; at++)
        if (at >= 0 && at < count)
            target[at] = bytes[at];
}

template <int CHANNELS>
__device__ void resample_tile(const Work &work, int top, int left, int *staged, int *made)
{
    const bool down = work.columns_first;
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int height = min(TILE, work.height - top), width = min(TILE, work.width - left);
    const int4 *first_table = (const int4 *)(down ? work.rows : work.columns);
    const int4 *second_table = (const int4 *)(down ? work.columns : work.rows);
    // Pixels of the tile along the first pass, and along the second.
    const int along = down ? height : width, across = down ? width : height;
    const int first_pixel = down ? top : left, second_pixel = down ? left : top;
    const int lines = down ? work.source_width : work.source_height;
    int word, word_end, line_word, line_word_end;
    words_of(first_table, first_pixel, along, word, word_end);
    words_of(second_table, second_pixel, across, line_word, line_word_end);

    int levels[PART][CHANNELS];
    for (int part = 0; part < PART; part++) {
        const int pixel = part * WARPS + warp;
        for (int channel = 0; channel < CHANNELS; channel++)
            levels[part][channel] = pixel < across ? __ldg(second_table + second_pixel + pixel).z : 0;
    }
    for (; line_word < line_word_end; line_word += MADE) {
        const int line = 4 * line_word;
        int sums[PART][CHANNELS];
        for (int part = 0; part < PART; part++) {
            const int pixel = part * WARPS + warp;
            for (int channel = 0; channel < CHANNELS; channel++)
                sums[part][channel] = pixel < along ? __ldg(first_table + first_pixel + pixel).z : 0;
        }
        for (int begin = word; begin < word_end; begin += STAGED) {
            const int end = min(begin + STAGED, word_end);
            __syncthreads();
            if (work.yuv || down)
                stage_pixels<CHANNELS>(work, line, min(LANES, lines - line), begin, end - begin, staged);
            else
                stage_rows<CHANNELS>(work, line, min(LANES, lines - line), begin, end - begin, staged);
            __syncthreads();
            for (int part = 0; part < PART; part++) {
                const int pixel = part * WARPS + warp;
                if (pixel < along)
                    add_taps<CHANNELS>(
                        sums[part], first_table, first_pixel + pixel, begin, end, staged + lane * STAGED_STEP,
                        LANES * STAGED_STEP);
            }
        }
        for (int part = 0; part < PART; part++) {
            const int pixel = part * WARPS + warp;
            for (int channel = 0; channel < CHANNELS; channel++)
                ((unsigned char *)(made + (channel * TILE + pixel) * MADE_STEP))[lane]
                    = level_of(sums[part][channel] >> 22) ^ 0x80;
        }
        __syncthreads();
        for (int part = 0; part < PART; part++) {
            const int pixel = part * WARPS + warp;
            if (pixel < across)
                add_taps<CHANNELS>(
                    levels[part], second_table, second_pixel + pixel, line_word, line_word + MADE,
                    made + lane * MADE_STEP, TILE * MADE_STEP);
        }
    }
    // Nobody reads what was staged any more.
    unsigned char *tile = (unsigned char *)staged;
    for (int part = 0; part < PART; part++) {
        const int pixel = part * WARPS + warp, row = down ? lane : pixel, column = down ? pixel : lane;
        for (int channel = 0; channel < CHANNELS; channel++) {
            const int place = work.to_bgr ? CHANNELS - 1 - channel : channel;
            tile[(row * TILE + column) * CHANNELS + place] = level_of(levels[part][channel] >> 22);
        }
    }
    __syncthreads();
    for (int row = warp; row < height; row += WARPS)
        write_row(
            tile + row * TILE * CHANNELS,
            work.target + (top + row) * work.target_pitch + (long long)left * CHANNELS,
            width * CHANNELS);
}

extern "C" __global__ void __launch_bounds__(256, 4) resample(const Work *works)
{
    __shared__ int staged[3 * LANES * STAGED_STEP], made[3 * TILE * MADE_STEP];
    const Work work = works[blockIdx.z];
    const int top = blockIdx.y * TILE, left = blockIdx.x * TILE;
    if (top >= work.height || left >= work.width)
        return;
    if (work.channels == 3)
        resample_tile<3>(work, top, left, staged, made);
    else
        resample_tile<1>(work, top, left, staged, made);
}
"""
)
