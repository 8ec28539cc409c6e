// Runs kernels on a CPU: a block's threads are fibers, which change where threads wait for each other, in an order that
// is drawn from a seed. A missing barrier so gives wrong results under some seed, and AddressSanitizer sees what a
// thread reads. For tests; see gpu/cuda/device.h for what kernels are written in.
//
// Limits: one block at a time, static shared memory, exchanges by whole warps, and no weak memory model.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define EDGE_RT_DEVICE inline __attribute__((always_inline))
#define EDGE_RT_UNROLL(n)
#define EDGE_RT_SHARED static EDGE_RT_SHARED_SECTION
// All shared memory lies together, so that it can be filled with rubbish before a block begins.
#define EDGE_RT_SHARED_SECTION __attribute__((section("edge_rt_shared")))
#define EDGE_RT_KERNEL(name, threads, Args)                                                                  \
  static void name##_body(const Args& args);                                                                 \
  static const ::edge_rt::gpu::simt::Kernel name##_entry(                                                    \
      #name, threads, sizeof(Args), [](const void* args) { name##_body(*static_cast<const Args*>(args)); }); \
  static void name##_body([[maybe_unused]] const Args& args)
#define EDGE_RT_KERNEL_OF_BLOCKS(name, threads, blocks, Args) EDGE_RT_KERNEL(name, threads, Args)

namespace edge_rt::gpu {

namespace simt {

// A kernel by name; all there are make a list, in the order of their making.
struct Kernel {
  const char* name;
  int threads;
  size_t args_bytes;
  void (*body)(const void* args);
  const Kernel* next;

  Kernel(const char* kernel, int thread_count, size_t bytes, void (*function)(const void*));
};

// nullptr: there is none of that name.
const Kernel* find_kernel(const char* name);

// Runs all blocks of a grid. Seed 0: all threads take turns. Else a warp drawn by lot runs far ahead of the others, as
// far as barriers let it, its threads in a drawn order.
void launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, uint64_t seed);

// Of the running thread.
struct Place {
  int thread, block_x, block_y;
};
const Place& place();

void barrier();
void warp_barrier();
// Gives 8 bytes to the warp and returns those of another lane.
uint64_t exchange(uint64_t word, int from_lane);
// Gives 32 bytes to the warp; `all` is then what its 32 lanes gave, until the next exchange.
struct Fragment {
  uint32_t words[8];
};
const Fragment* gather(const Fragment& mine);

}  // namespace simt

inline int thread() { return simt::place().thread; }
inline int block_x() { return simt::place().block_x; }
inline int block_y() { return simt::place().block_y; }
inline void barrier() { simt::barrier(); }
inline void warp_barrier() { simt::warp_barrier(); }
// Read, so that a place which does not exist is noticed.
inline void fetch_line(const void* place) { static_cast<void>(*static_cast<const volatile char*>(place)); }

template <class T>
inline T broadcast(T value, int lane) {
  static_assert(sizeof(T) <= 8);
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  word = simt::exchange(word, lane);
  std::memcpy(&value, &word, sizeof value);
  return value;
}
template <class T>
inline T exchange(T value, int bits) {
  return broadcast(value, (simt::place().thread & 31) ^ bits);
}

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float add(float a, float b) { return a + b; }
inline float mul(float a, float b) { return a * b; }
inline float div(float a, float b) { return a / b; }
inline float sqrt(float a) { return __builtin_sqrtf(a); }
inline float from_int(int a) { return static_cast<float>(a); }
inline int round_to_int(float a) { return static_cast<int>(std::nearbyint(a)); }
inline float float_of_bits(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}
inline uint32_t bits_of_float(float a) {
  uint32_t out;
  std::memcpy(&out, &a, sizeof out);
  return out;
}
float float_of_half(uint16_t half);
uint16_t half_of_float(float a);

inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t all = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(all >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return out;
}

inline int dot4(uint32_t a, uint32_t b, int c) {
  for (int k = 0; k < 32; k += 8) c += static_cast<int8_t>(a >> k) * static_cast<int8_t>(b >> k);
  return c;
}

inline void mma_16x8x32(int (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  const int lane = simt::place().thread & 31;
  const simt::Fragment* all = simt::gather({{a[0], a[1], a[2], a[3], b[0], b[1]}});
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, column = 2 * (lane % 4) + i % 2, upper = i / 2;
    for (int quartet = 0; quartet < 8; ++quartet) {
      const uint32_t from_a = all[4 * row + quartet % 4].words[2 * (quartet / 4) + upper];
      const uint32_t from_b = all[4 * column + quartet % 4].words[4 + quartet / 4];
      c[i] = dot4(from_a, from_b, c[i]);
    }
  }
  simt::warp_barrier();
}

}  // namespace edge_rt::gpu
