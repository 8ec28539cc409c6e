// What kernels are written in: CUDA C++, a few names of ours, and nothing else.
//
// NVRTC compiles the same source for a GPU (gpu/cuda/rtc holds the few standard headers that it lacks), and a C++
// compiler for threads that are fibers (tests/emulator/simt.h): that is how kernels are tested where there is no GPU.
// Products and sums are single IEEE operations in the order of the CPU's kernels, so the bits are theirs; the build
// says
// --fmad=false.
//
// A kernel takes one struct of plain data:
//
//   struct ScaleArgs { const float* x; float* y; float factor; int64_t count; };
//   EDGE_RT_KERNEL(scale, 128, ScaleArgs) {                      // name, threads of a block, arguments
//     const int64_t i = int64_t{block_x()} * 128 + thread();
//     if (i < args.count) args.y[i] = args.x[i] * args.factor;
//   }
//
// Shared memory is declared EDGE_RT_SHARED, and is full of rubbish when a block begins. Warps meet whole at barriers
// and exchanges: no thread may have returned before them.
#pragma once

#if defined(__CUDACC_RTC__)

#include <cstddef>
#include <cstdint>
#include <cstring>

#define EDGE_RT_DEVICE __device__ __forceinline__
#define EDGE_RT_SHARED __shared__
// One block at least is to fit a multiprocessor: otherwise compilers spill registers to make room for more.
#define EDGE_RT_KERNEL(name, threads, Args) EDGE_RT_KERNEL_OF_BLOCKS(name, threads, 1, Args)
// So many blocks are to fit it, whatever registers that leaves.
#define EDGE_RT_KERNEL_OF_BLOCKS(name, threads, blocks, Args) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Args args)
// Before a loop: `n` rounds of it at once.
#define EDGE_RT_UNROLL(n) EDGE_RT_PRAGMA(unroll n)
#define EDGE_RT_PRAGMA(words) _Pragma(#words)

namespace edge_rt::gpu {

EDGE_RT_DEVICE int thread() { return static_cast<int>(threadIdx.x); }
EDGE_RT_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
EDGE_RT_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
EDGE_RT_DEVICE void barrier() { __syncthreads(); }
EDGE_RT_DEVICE void warp_barrier() { __syncwarp(); }

// The value of the thread whose number in the warp differs in these bits. The whole warp, or the half that 16 lanes of
// bits below 16 make, calls it together.
template <class T>
EDGE_RT_DEVICE T exchange(T value, int bits) {
  return __shfl_xor_sync(0xffffffffu, value, bits);
}
// The value of lane `lane` of the warp.
template <class T>
EDGE_RT_DEVICE T broadcast(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

// Fetches the line of 128 bytes around a place of device memory into the second-level cache.
EDGE_RT_DEVICE void fetch_line(const void* place) { asm volatile("prefetch.global.L2 [%0];" : : "l"(place)); }

EDGE_RT_DEVICE float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
EDGE_RT_DEVICE float add(float a, float b) { return __fadd_rn(a, b); }
EDGE_RT_DEVICE float mul(float a, float b) { return __fmul_rn(a, b); }
EDGE_RT_DEVICE float div(float a, float b) { return __fdiv_rn(a, b); }
EDGE_RT_DEVICE float sqrt(float a) { return __fsqrt_rn(a); }
EDGE_RT_DEVICE float from_int(int a) { return __int2float_rn(a); }
// To the nearest integer, ties to even.
EDGE_RT_DEVICE int round_to_int(float a) { return __float2int_rn(a); }
EDGE_RT_DEVICE float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }
EDGE_RT_DEVICE uint32_t bits_of_float(float a) { return __float_as_uint(a); }
EDGE_RT_DEVICE float float_of_half(uint16_t half) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(half));
  return out;
}
// To nearest, ties to even; what lies beyond +-65504 becomes +-65504.
EDGE_RT_DEVICE uint16_t half_of_float(float a) {
  a = a > 65504.0f ? 65504.0f : a < -65504.0f ? -65504.0f : a;
  uint16_t out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(a));
  return out;
}

// Byte i of the result is byte (selector >> 4 i) & 7 of eight, of which `a` holds the first four.
EDGE_RT_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }

// c + the sum over k < 4 of the signed bytes a[k] * b[k].
EDGE_RT_DEVICE int dot4(uint32_t a, uint32_t b, int c) { return __dp4a(static_cast<int>(a), static_cast<int>(b), c); }

// c += a * b for 16 x 32 signed bytes times 32 x 8, by the whole warp. With g = lane / 4 and q = lane % 4 a thread
// gives quartets (four neighbours along the 32) of rows g and g + 8 of a, of column g of b, and gets c of these rows
// and of columns 2 q and 2 q + 1:
//   a[0]: row g, quartet q;  a[1]: row g + 8, quartet q;  a[2], a[3]: the same rows, quartet q + 4
//   b[0]: quartet q;         b[1]: quartet q + 4
//   c[0], c[1]: row g;       c[2], c[3]: row g + 8
// Any order of the quartets will do, if it is that of both a and b.
EDGE_RT_DEVICE void mma_16x8x32(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 2; ++k) {
      asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
                   : "+r"(c[2 * half]), "+r"(c[2 * half + 1])
                   : "r"(a[2 * k + half]), "r"(b[k]));
    }
  }
#endif
}

}  // namespace edge_rt::gpu

#else

#include "tests/emulator/simt.h"

#endif

namespace edge_rt::gpu {

EDGE_RT_DEVICE int lane() { return thread() & 31; }
EDGE_RT_DEVICE int warp() { return thread() >> 5; }

}  // namespace edge_rt::gpu
