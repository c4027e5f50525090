"""Pillow's resize as one kernel: both passes a tile, so that what lies between them never leaves the chip.

A block makes ``TILE`` x ``TILE`` pixels. It goes over the source that these read in rounds of 64 or 32 lines: it stages
them in shared memory, in pieces where they are too long, adds the first pass's taps, rounds to 8 bits as Pillow does,
and adds the taps that the second pass has in these lines. So shared memory and registers do not depend on the scale.

**Lanes are lines.** A warp makes the same output pixel of 32 lines, hence all lanes have the same weights and read the
same word of lines that lie an odd number of words apart: no two lanes meet in a bank. What the first pass makes is
stored the other way round, so that the second one is the same code.

**Four taps a word.** Each channel lies by itself, four pixels a word, and ``__dp4a`` multiplies four signed bytes. A
weight of 23 bits is therefore three signed digits of base 256, and a level 128 less, which the start value makes up
for. All sums are those of Pillow, modulo 2^32, in which its own fit.

docs/gpu.md models how long it takes, and ``tests/preprocess/test_resize_model.py`` holds the model.
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
// Words of each channel that are staged at once; of a line that does not fit, those of a piece; times 32 lines.
const int STAGED = 3520, PIECE = 76, GROUPS = 2;
// Words from an output pixel of the first pass to the next: a byte for each line, and an odd number of words.
const int MADE_STEP = GROUPS * LANES / 4 + 1;
static_assert(3 * LANES * (PIECE + 1) + 3 * TILE * LANES <= 3 * STAGED, "sums of pieces lie behind a staged piece");

// What is staged at once: ``words`` of each of ``lines``, ``step`` words apart; channels are ``channel_step`` apart.
struct Stage {
    int line, lines, word, words, step, channel_step;
};

// The words that ``count`` output pixels from ``pixel`` on read; they may go backwards.
__device__ void words_of(const int4 *table, int pixel, int count, int &begin, int &end)
{
    const int4 one = __ldg(table + pixel), other = __ldg(table + pixel + count - 1);
    begin = min(one.x, other.x);
    end = max(one.x + one.y, other.x + other.y);
}

// Adds the taps of an output pixel that lie in words ``begin`` to ``end``, which are at ``line`` of each group.
template <int CHANNELS, int COUNT>
__device__ void add_taps(
    int (*sums)[CHANNELS], const int4 *table, int4 taps, int begin, int end, const int *line, int channel_step,
    int group_step)
{
    const int first = max(taps.x, begin), last = min(taps.x + taps.y, end);
    if (first >= last)
        return;
    unsigned int entry = taps.w + first - taps.x;
    line += first - begin;
    int high[COUNT][CHANNELS] = {}, middle[COUNT][CHANNELS] = {}, low[COUNT][CHANNELS] = {};
#pragma unroll 1
    for (int left = last - first; left > 0; left--) {
        const int4 weight = __ldg(table + entry++);
        for (int group = 0; group < COUNT; group++)
            for (int channel = 0; channel < CHANNELS; channel++) {
                const int four = line[group * group_step + channel * channel_step];
                high[group][channel] = __dp4a(four, weight.x, high[group][channel]);
                middle[group][channel] = __dp4a(four, weight.y, middle[group][channel]);
                low[group][channel] = __dp4a(four, weight.z, low[group][channel]);
            }
        line++;
    }
    for (int group = 0; group < COUNT; group++)
        for (int channel = 0; channel < CHANNELS; channel++)
            sums[group][channel]
                += high[group][channel] * 65536 + middle[group][channel] * 256 + low[group][channel];
}

// Stages pixel by pixel: YUV, and lines that are columns.
template <int CHANNELS>
__device__ void stage_pixels(const Work &work, const Stage &stage, int *staged)
{
    const int pixels = work.columns_first ? work.source_height : work.source_width;
    const bool lines_are_neighbours = work.columns_first != (work.yuv && !work.yuv->across[2]);
    for (int at = threadIdx.y * LANES + threadIdx.x; at < stage.lines * stage.words; at += LANES * WARPS) {
        const int line = lines_are_neighbours ? at % stage.lines : at / stage.words;
        const int word = lines_are_neighbours ? at / stage.lines : at % stage.words;
        unsigned int packed[CHANNELS] = {};
        for (int pixel = 0; pixel < 4; pixel++) {
            // Beyond the source weights are 0.
            const int across = stage.line + line, along = min(4 * (stage.word + word) + pixel, pixels - 1);
            int levels[CHANNELS];
            source_pixel<CHANNELS>(
                work, work.columns_first ? along : across, work.columns_first ? across : along, levels);
            for (int channel = 0; channel < CHANNELS; channel++)
                packed[channel] |= levels[channel] << 8 * pixel;
        }
        for (int channel = 0; channel < CHANNELS; channel++)
            staged[channel * stage.channel_step + line * stage.step + word] = packed[channel] ^ 0x80808080u;
    }
}

// Four pixels of three interleaved bytes, which begin ``shift`` bits within ``raw``, to a word for each channel.
template <int CHANNELS>
__device__ void put_four(const unsigned int *raw, int shift, int *staged, int channel_step)
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
        staged[channel * channel_step] = rgb[channel] ^ 0x80808080u;
}

// Stages rows of RGB, sixteen pixels a thread, by 16 aligned bytes of which every time one at least is the row's.
template <int CHANNELS>
__device__ void stage_rows(const Work &work, const Stage &stage, int *staged)
{
    // From here on 32 bits hold an offset: a row has less than 2^25 bytes.
    const unsigned char *first = work.source + (work.top + stage.line) * work.source_pitch + 3 * (long long)work.left;
    const int before = (int)((unsigned long long)first & 15), pitch = (int)work.source_pitch;
    const int4 *memory = (const int4 *)(first - before);
    const int row_bytes = 3 * work.source_width, units = (stage.words + 3) / 4;
    const int more_lines = LANES * WARPS / units, more_units = LANES * WARPS % units;
    const int thread = threadIdx.y * LANES + threadIdx.x;
    int line = thread / units, unit = thread % units;
    while (line < stage.lines) {
        const int begin = 12 * stage.word + 48 * unit, offset = line * pitch + begin + before;
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
        int *place = staged + line * stage.step + 4 * unit;
        for (int four = 0; four < 4; four++)
            put_four<CHANNELS>(raw + 3 * four, 8 * (offset & 3), place + four, stage.channel_step);
        line += more_lines;
        unit += more_units;
        if (unit >= units) {
            unit -= units;
            line++;
        }
    }
}

// The first pass of an output pixel in ``COUNT`` x 32 lines. ``partial`` keeps its sums from piece to piece.
template <int CHANNELS, int COUNT>
__device__ void make_lines(
    const int4 *table, int first_pixel, int pixel, const Stage &stage, const int *staged, int *partial, int *made,
    bool begins, bool ends)
{
    const int lane = threadIdx.x;
    const int4 taps = __ldg(table + first_pixel + pixel);
    int sums[COUNT][CHANNELS];
    for (int group = 0; group < COUNT; group++)
        for (int channel = 0; channel < CHANNELS; channel++)
            sums[group][channel] = begins ? taps.z : partial[(channel * TILE + pixel) * LANES + lane];
    add_taps<CHANNELS, COUNT>(
        sums, table, taps, stage.word, stage.word + stage.words, staged + lane * stage.step, stage.channel_step,
        LANES * stage.step);
    for (int group = 0; group < COUNT; group++)
        for (int channel = 0; channel < CHANNELS; channel++)
            if (ends)
                ((unsigned char *)(made + (channel * TILE + pixel) * MADE_STEP))[group * LANES + lane]
                    = level_of(sums[group][channel] >> 22) ^ 0x80;
            else
                partial[(channel * TILE + pixel) * LANES + lane] = sums[group][channel];
}

// Writes a row of bytes, which begins with a word, by words of the memory, and the ends that fill none byte by byte.
__device__ void write_row(const unsigned int *row, unsigned char *target, int count)
{
    const int begin = 4 * threadIdx.x - (int)((unsigned long long)target & 3);
    if (begin >= 0 && begin + 4 <= count) {
        const int word = begin / 4;
        // Of the second word nothing is taken where the row begins with a word of the memory, too.
        *(unsigned int *)(target + begin) = __funnelshift_r(row[word], row[word + 1], 8 * (begin & 3));
        return;
    }
    for (int at = begin; at < begin + 4; at++)
        if (at >= 0 && at < count)
            target[at] = ((const unsigned char *)row)[at];
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
    const int words = word_end - word;
    const bool whole = (words + 3) / 4 * 4 < STAGED / LANES;
    const int pieces = whole ? 1 : (words + PIECE - 1) / PIECE, piece = (words + pieces - 1) / pieces;
    Stage stage;
    stage.step = (piece + 3) / 4 * 4 + 1;
    const bool both = whole && GROUPS * LANES * stage.step <= STAGED;
    const int lines_at_once = both ? GROUPS * LANES : LANES;
    stage.channel_step = lines_at_once * stage.step;
    int *partial = staged + 3 * LANES * (PIECE + 1);

    int levels[PART][1][CHANNELS];
    for (int part = 0; part < PART; part++)
        for (int channel = 0; channel < CHANNELS; channel++)
            levels[part][0][channel]
                = part * WARPS + warp < across ? __ldg(second_table + second_pixel + part * WARPS + warp).z : 0;
    for (; line_word < line_word_end; line_word += lines_at_once / 4) {
        stage.line = 4 * line_word;
        stage.lines = min(lines_at_once, lines - stage.line);
        for (stage.word = word; stage.word < word_end; stage.word += piece) {
            stage.words = min(piece, word_end - stage.word);
            __syncthreads();
            if (work.yuv || down)
                stage_pixels<CHANNELS>(work, stage, staged);
            else
                stage_rows<CHANNELS>(work, stage, staged);
            __syncthreads();
            const bool begins = stage.word == word, ends = stage.word + piece >= word_end;
#pragma unroll 1
            for (int pixel = warp; pixel < along; pixel += WARPS)
                if (both && stage.lines > LANES)
                    make_lines<CHANNELS, GROUPS>(
                        first_table, first_pixel, pixel, stage, staged, partial, made, true, true);
                else
                    make_lines<CHANNELS, 1>(
                        first_table, first_pixel, pixel, stage, staged, partial, made, begins, ends);
        }
        __syncthreads();
        for (int part = 0; part < PART; part++)
            if (part * WARPS + warp < across)
                add_taps<CHANNELS, 1>(
                    levels[part], second_table, __ldg(second_table + second_pixel + part * WARPS + warp), line_word,
                    line_word + lines_at_once / 4, made + lane * MADE_STEP, TILE * MADE_STEP, 0);
    }
    // Nobody reads what was staged any more.
    unsigned char *tile = (unsigned char *)staged;
    for (int part = 0; part < PART; part++) {
        const int pixel = part * WARPS + warp, row = down ? lane : pixel, column = down ? pixel : lane;
        for (int channel = 0; channel < CHANNELS; channel++) {
            const int place = work.to_bgr ? CHANNELS - 1 - channel : channel;
            tile[(row * TILE + column) * CHANNELS + place] = level_of(levels[part][0][channel] >> 22);
        }
    }
    __syncthreads();
    for (int row = warp; row < height; row += WARPS)
        write_row(
            (const unsigned int *)staged + row * TILE * CHANNELS / 4,
            work.target + (top + row) * work.target_pitch + (long long)left * CHANNELS, width * CHANNELS);
}

extern "C" __global__ void __launch_bounds__(256, 4) resample(const Work *works)
{
    __shared__ int staged[3 * STAGED], made[3 * TILE * MADE_STEP];
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
