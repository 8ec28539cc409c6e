// longjmp is to change stacks here, which a fortified one forbids.
#undef _FORTIFY_SOURCE

#include "gpu/simt.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define EDGE_RT_ASAN_FIBERS 1
#endif

// Where the linker puts the beginning and the end of what EDGE_RT_SHARED declares; absent without any.
extern "C" {
extern char __start_edge_rt_shared[] __attribute__((weak));
extern char __stop_edge_rt_shared[] __attribute__((weak));
}

namespace edge_rt::gpu {
namespace simt {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr int kWarp = 32;
constexpr int kPatience = 1 << 20;  // rounds in which no thread ends

const Kernel* first_kernel = nullptr;

// Who waits where: the last one to arrive lets all others go on.
struct Meeting {
  int arrived = 0;
  unsigned number = 0;
};

struct Fiber {
  ucontext_t context;
  jmp_buf jump;
  std::unique_ptr<char[]> stack;
  Place place;
  bool has_begun = false, is_done = false;
  const Meeting* waits_for = nullptr;
  unsigned waits_while = 0;    // the meeting has this number
  void* fake_stack = nullptr;  // AddressSanitizer's

  bool can_go_on() const { return !is_done && (waits_for == nullptr || waits_for->number != waits_while); }
};

struct Warp {
  Meeting meeting;
  uint64_t words[2][kWarp];  // of two meetings in turn: lanes may still read those of the last one
  Fragment fragments[kWarp];
};

struct Block {
  const Kernel* kernel;
  const void* args;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  Meeting meeting;
  int left;
  Fiber* now = nullptr;
  ucontext_t main;
  jmp_buf jump;
  void* fake_stack = nullptr;
  const void* main_stack = nullptr;
  size_t main_stack_bytes = 0;
};

// Kernels run one after the other in one thread; this is what their functions reach without an argument.
Block* running = nullptr;

// swapcontext costs two calls of the system, which jumps do without; but AddressSanitizer knows no jump between stacks.
void leave(bool for_ever) {
  Fiber& fiber = *running->now;
#ifdef EDGE_RT_ASAN_FIBERS
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &fiber.fake_stack, running->main_stack,
                                 running->main_stack_bytes);
  swapcontext(&fiber.context, &running->main);
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &running->main_stack, &running->main_stack_bytes);
#else
  (void)for_ever;
  if (_setjmp(fiber.jump) == 0) _longjmp(running->jump, 1);
#endif
}

void run_body() {
  running->kernel->body(running->args);
  running->now->is_done = true;
  --running->left;
}

// Jumps lead a fiber back here for every block, which is quicker than to make it anew.
void fiber_main() {
#ifdef EDGE_RT_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(nullptr, &running->main_stack, &running->main_stack_bytes);
  run_body();
  leave(true);
#else
  for (;; leave(false)) run_body();
#endif
}

void enter(Fiber* fiber) {
  running->now = fiber;
#ifdef EDGE_RT_ASAN_FIBERS
  __sanitizer_start_switch_fiber(&running->fake_stack, fiber->stack.get(), kStackBytes);
  swapcontext(&running->main, &fiber->context);
  __sanitizer_finish_switch_fiber(running->fake_stack, nullptr, nullptr);
#else
  if (_setjmp(running->jump) != 0) return;
  if (fiber->has_begun) _longjmp(fiber->jump, 1);
  fiber->has_begun = true;
  setcontext(&fiber->context);
#endif
}

void meet(Meeting* meeting, int all) {
  const unsigned number = meeting->number;
  if (++meeting->arrived == all) {
    meeting->arrived = 0;
    ++meeting->number;
    return;
  }
  running->now->waits_for = meeting;
  running->now->waits_while = number;
  leave(false);
  running->now->waits_for = nullptr;
}

Warp& own_warp() { return running->warps[static_cast<size_t>(running->now->place.thread / kWarp)]; }

[[noreturn]] void fail(const char* kernel, const char* why) {
  std::fprintf(stderr, "%s: %s\n", kernel, why);
  std::abort();
}

void make_fiber(Fiber* fiber) {
  if (fiber->stack == nullptr) fiber->stack.reset(new char[kStackBytes]);
  fiber->has_begun = false;
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.get();
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, fiber_main, 0);
}

void begin_block(Block* block, int threads, int x, int y) {
  block->fibers.resize(static_cast<size_t>(threads));
  block->warps.resize(static_cast<size_t>(threads / kWarp));
  block->left = threads;
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = block->fibers[static_cast<size_t>(i)];
    fiber.place = {i, x, y};
    fiber.is_done = false;
    fiber.waits_for = nullptr;
#ifdef EDGE_RT_ASAN_FIBERS
    make_fiber(&fiber);
#else
    if (fiber.stack == nullptr) make_fiber(&fiber);
#endif
  }
}

void run_block(Block* block, std::mt19937_64* random, bool is_drawn) {
  const int threads = static_cast<int>(block->fibers.size());
  std::vector<int> order(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) order[static_cast<size_t>(i)] = i;
  int idle = 0;
  while (block->left > 0) {
    int first = 0, last = threads;
    uint64_t turns = 1;
    if (is_drawn) {
      first = kWarp * static_cast<int>((*random)() % static_cast<uint64_t>(threads / kWarp));
      last = first + kWarp;
      turns = 1 + (*random)() % 64;
      std::shuffle(order.begin() + first, order.begin() + last, *random);
    }
    const int before = block->left;
    for (bool moves = true; moves && turns > 0; --turns) {
      moves = false;
      for (int i = first; i < last; ++i) {
        Fiber& fiber = block->fibers[static_cast<size_t>(order[static_cast<size_t>(i)])];
        if (!fiber.can_go_on()) continue;
        moves = true;
        enter(&fiber);
      }
    }
    idle = block->left < before ? 0 : idle + 1;
    if (idle > kPatience) fail(block->kernel->name, "threads wait where others never come");
  }
  if (block->meeting.arrived != 0) fail(block->kernel->name, "threads have returned before a barrier");
}

}  // namespace

Kernel::Kernel(const char* kernel, int thread_count, size_t bytes, void (*function)(const void*))
    : name(kernel), threads(thread_count), args_bytes(bytes), body(function), next(first_kernel) {
  first_kernel = this;
}

const Kernel* find_kernel(const char* name) {
  const Kernel* found = first_kernel;
  while (found != nullptr && std::strcmp(found->name, name) != 0) found = found->next;
  return found;
}

void launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, uint64_t seed) {
  if (kernel.threads % kWarp != 0) fail(kernel.name, "blocks are of whole warps");
  Block block;
  block.kernel = &kernel;
  block.args = args;
  Block* const outer = running;
  running = &block;
  std::mt19937_64 random(seed);
  for (int y = 0; y < grid_y; ++y) {
    for (int x = 0; x < grid_x; ++x) {
      if (__start_edge_rt_shared != nullptr) {
        std::memset(__start_edge_rt_shared, 0xAA, static_cast<size_t>(__stop_edge_rt_shared - __start_edge_rt_shared));
      }
      begin_block(&block, kernel.threads, x, y);
      run_block(&block, &random, seed != 0);
    }
  }
  running = outer;
}

const Place& place() { return running->now->place; }

void barrier() { meet(&running->meeting, static_cast<int>(running->fibers.size())); }

void warp_barrier() { meet(&own_warp().meeting, kWarp); }

uint64_t exchange(uint64_t word, int from_lane) {
  Warp& warp = own_warp();
  uint64_t* words = warp.words[warp.meeting.number % 2];
  words[running->now->place.thread % kWarp] = word;
  warp_barrier();
  return words[from_lane];
}

const Fragment* gather(const Fragment& mine) {
  Warp& warp = own_warp();
  warp.fragments[running->now->place.thread % kWarp] = mine;
  warp_barrier();
  return warp.fragments;
}

}  // namespace simt

namespace {

float scaled(uint32_t whole, float by) { return static_cast<float>(whole) * by; }

}  // namespace

float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, exponent = (half >> 10) & 31, rest = half & 0x3ff;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000u | rest << 13);
  if (exponent != 0) return float_of_bits(sign | (exponent + 112) << 23 | rest << 13);
  return float_of_bits(sign | bits_of_float(scaled(rest, 0x1p-24f)));
}

uint16_t half_of_float(float a) {
  const uint32_t bits = bits_of_float(a), sign = (bits >> 16) & 0x8000;
  float size = float_of_bits(bits & 0x7fffffff);
  if (!(size <= 65504.0f)) size = 65504.0f;
  if (size < 0x1p-14f) return static_cast<uint16_t>(sign | static_cast<uint32_t>(round_to_int(size * 0x1p24f)));
  uint32_t whole = bits_of_float(size);
  whole += 0xfff + ((whole >> 13) & 1);  // ties to even
  return static_cast<uint16_t>(sign | ((whole >> 13) - (112u << 10)));
}

}  // namespace edge_rt::gpu
