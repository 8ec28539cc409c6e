// longjmp is to change stacks here, which a fortified one forbids.
#undef _FORTIFY_SOURCE

#include "tests/emulator/simt.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
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

#ifdef EDGE_RT_ASAN_FIBERS
using Jump = void* [5];  // of GCC's built-in functions
#else
using Jump = jmp_buf;
#endif

struct Fiber {
  ucontext_t context;  // which it begins with
  Jump jump;
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
  std::vector<std::unique_ptr<Fiber>> fibers;  // as many as the kernel has threads, or more
  std::vector<Warp> warps;
  Meeting meeting;
  int left;
  Fiber* now = nullptr;
  Jump jump;
  void* fake_stack = nullptr;
  const void* main_stack = nullptr;
  size_t main_stack_bytes = 0;
};

// Kernels run one after the other in one thread; this is what their functions reach without an argument.
Block* running = nullptr;

// Stacks are changed by jumps. swapcontext costs two calls of the system, and with AddressSanitizer it forgets what
// that knows of the whole stack, which takes microseconds more.
#ifdef EDGE_RT_ASAN_FIBERS
constexpr auto start_switch = __sanitizer_start_switch_fiber;
constexpr auto finish_switch = __sanitizer_finish_switch_fiber;
// AddressSanitizer takes longjmp for the end of functions on the stack. These jumps it does not see.
#define EDGE_RT_UNSEEN __attribute__((noinline, no_sanitize_address))
EDGE_RT_UNSEEN void go(Jump to) { __builtin_longjmp(to, 1); }
EDGE_RT_UNSEEN void jump(Jump from, Jump to) {
  if (__builtin_setjmp(from) == 0) go(to);  // a function of its own: in one GCC takes what follows for unreachable
}
EDGE_RT_UNSEEN void jump_to_begin(Jump from, const ucontext_t* to) {
  if (__builtin_setjmp(from) == 0) setcontext(to);
}
#else
void jump(Jump from, Jump to) {
  if (_setjmp(from) == 0) _longjmp(to, 1);
}
void jump_to_begin(Jump from, const ucontext_t* to) {
  if (_setjmp(from) == 0) setcontext(to);
}
void start_switch(void**, const void*, size_t) {}
void finish_switch(void*, const void**, size_t*) {}
#endif

void leave() {
  Fiber& fiber = *running->now;
  start_switch(&fiber.fake_stack, running->main_stack, running->main_stack_bytes);
  jump(fiber.jump, running->jump);
  finish_switch(fiber.fake_stack, &running->main_stack, &running->main_stack_bytes);
}

// A fiber comes back here for every block and every kernel, which is quicker than to make it anew.
void fiber_main() {
  finish_switch(nullptr, &running->main_stack, &running->main_stack_bytes);
  for (;; leave()) {
    running->kernel->body(running->args);
    running->now->is_done = true;
    --running->left;
  }
}

void enter(Fiber* fiber) {
  running->now = fiber;
  start_switch(&running->fake_stack, fiber->stack.get(), kStackBytes);
  if (fiber->has_begun) {
    jump(running->jump, fiber->jump);
  } else {
    fiber->has_begun = true;
    jump_to_begin(running->jump, &fiber->context);
  }
  finish_switch(running->fake_stack, nullptr, nullptr);
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
  leave();
  running->now->waits_for = nullptr;
}

Warp& own_warp() { return running->warps[static_cast<size_t>(running->now->place.thread / kWarp)]; }

[[noreturn]] void fail(const char* kernel, const char* why) {
  std::fprintf(stderr, "%s: %s\n", kernel, why);
  std::abort();
}

std::unique_ptr<Fiber> make_fiber() {
  auto fiber = std::make_unique<Fiber>();
  fiber->stack.reset(new char[kStackBytes]);
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.get();
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, fiber_main, 0);
  return fiber;
}

void begin_block(Block* block, int threads, int x, int y) {
  while (block->fibers.size() < static_cast<size_t>(threads)) block->fibers.push_back(make_fiber());
  block->warps.resize(static_cast<size_t>(threads / kWarp));
  block->left = threads;
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = *block->fibers[static_cast<size_t>(i)];
    fiber.place = {i, x, y};
    fiber.is_done = false;
    fiber.waits_for = nullptr;
  }
}

void run_block(Block* block, std::mt19937_64* random, bool is_drawn) {
  const int threads = block->kernel->threads;
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
        Fiber& fiber = *block->fibers[static_cast<size_t>(order[static_cast<size_t>(i)])];
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
  static auto* const kept = new std::vector<std::unique_ptr<Fiber>>;  // of the last kernel, for as long as the process
  Block block;
  block.kernel = &kernel;
  block.args = args;
  block.fibers.swap(*kept);
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
  block.fibers.swap(*kept);
  running = outer;
}

const Place& place() { return running->now->place; }

void barrier() { meet(&running->meeting, running->kernel->threads); }

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
