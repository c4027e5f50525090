"""What lets a C++ compiler run CUDA kernels: their words, and threads of a block that wait for each other.

Where a source has no ``__syncthreads``, a block's threads are calls, one after the other. Else each has a stack of its
own and runs up to its next barrier before another goes on, forwards and backwards in turn, so that a barrier that is
missing gives wrong values. Shared memory is static, of one block at a time.
"""

from __future__ import annotations

PRELUDE = r"""
#include <math.h>
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>
#include <algorithm>
#include <memory>
#include <vector>
using std::max;
using std::min;

struct Dim { unsigned x, y, z; };
struct int4 { int x, y, z, w; };
static thread_local Dim blockIdx, blockDim, threadIdx;
#define __global__
#define __device__
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static thread_local
static inline double __dadd_rn(double one, double other) { return one + other; }
static inline double __dmul_rn(double one, double other) { return one * other; }
static inline float __fadd_rn(float one, float other) { return one + other; }
static inline float __fmul_rn(float one, float other) { return one * other; }
static inline void atomicAdd(unsigned *sum, unsigned one) { *sum += one; }
template <class Value> static inline Value __ldg(const Value *place)
{
    Value value;
    memcpy(&value, place, sizeof(value));
    return value;
}
static inline int __dp4a(int one, int other, int sum)
{
    for (int at = 0; at < 32; at += 8)
        sum += (signed char)(one >> at) * (signed char)(other >> at);
    return sum;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return ((unsigned long long)high << 32 | low) >> (shift & 31);
}
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned select)
{
    const unsigned long long bytes = (unsigned long long)high << 32 | low;
    unsigned chosen = 0;
    for (int at = 0; at < 4; at++)
        chosen |= (unsigned)(bytes >> 8 * (select >> 4 * at & 7) & 255) << 8 * at;
    return chosen;
}

template <class Call> static bool run_in_turn(Call &thread)
{
    for (threadIdx.y = 0; threadIdx.y < blockDim.y; threadIdx.y++)
        for (threadIdx.x = 0; threadIdx.x < blockDim.x; threadIdx.x++)
            thread();
    return true;
}

struct Fiber {
    ucontext_t context;
    jmp_buf place;
    bool begun, ended;
    std::unique_ptr<char[]> stack;
};
static const size_t STACK_BYTES = 65536;
static thread_local std::vector<Fiber> fibers;
static thread_local Fiber *current;
static thread_local jmp_buf scheduler;
static thread_local void *call;

[[maybe_unused]] static void __syncthreads()
{
    if (!_setjmp(current->place))
        _longjmp(scheduler, 1);
}

template <class Call> static void begin()
{
    (*(Call *)call)();
    current->ended = true;
    _longjmp(scheduler, 1);
}

// Lets a thread run up to its next barrier or its end.
template <class Call> static __attribute__((noinline)) void go_on(Fiber *fiber)
{
    current = fiber;
    if (_setjmp(scheduler))
        return;
    if (fiber->begun)
        _longjmp(fiber->place, 1);
    fiber->begun = true;
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.get();
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, begin<Call>, 0);
    setcontext(&fiber->context);
}

template <class Call> static bool run_together(Call &thread)
{
    const int count = blockDim.x * blockDim.y;
    while ((int)fibers.size() < count)
        fibers.push_back(Fiber{{}, {}, false, false, std::unique_ptr<char[]>(new char[STACK_BYTES])});
    for (int at = 0; at < count; at++)
        fibers[at].begun = fibers[at].ended = false;
    call = &thread;
    int ended = 0;
    for (bool backwards = false; !ended; backwards = !backwards)
        for (int turn = 0; turn < count; turn++) {
            const int at = backwards ? count - 1 - turn : turn;
            threadIdx = {at % blockDim.x, at / blockDim.x, 0};
            go_on<Call>(&fibers[at]);
            ended += fibers[at].ended;
        }
    return ended == count;
}
"""
"""Goes before a kernel's source. ``run_together`` says whether all threads of a block met the same barriers."""
