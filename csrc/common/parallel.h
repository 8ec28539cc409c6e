// Work in phases: several parallel loops, one after the other, for the price of one fork and join.
//
// Items of all phases are numbered through. A thread claims the lowest item that nobody has claimed, but only once
// every item of the earlier phases is done; until then it holds nothing. So each claimed item is being run by the
// thread that claimed it, and the loops end whatever number of threads the pool gives: one is enough.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <thread>
#include <type_traits>

#include "common/float_mode.h"

namespace edge_rt {

// Most threads that ever work on one set of phases, so also the bound of the worker numbers.
constexpr int kMaxWorkers = 64;

// Where threads come from. parallel_for calls function(user, i) once for every i below n, on as many threads as it
// likes, and returns when all calls have. A null parallel_for means: no threads, run in the caller.
struct Executor {
  void* self = nullptr;
  void (*parallel_for)(void* self, int64_t n, void (*function)(void* user, int64_t i), void* user) = nullptr;
};

// One parallel loop. `run` is called once for every item below `items`, in any order, and sees everything that earlier
// phases wrote. `worker` (0 <= worker < kMaxWorkers) is the number of the calling thread: no two threads share one, so
// it may index scratch memory. What is computed must not depend on it.
struct Phase {
  int64_t items;
  void (*run)(void* user, int64_t item, int worker);
  void* user;
};

// Makes a phase of a callable `body(item)` or `body(item, worker)`, which must outlive the call of run_phases.
template <class Body>
Phase make_phase(int64_t items, Body& body) {
  auto run = [](void* user, int64_t item, int worker) {
    if constexpr (std::is_invocable_v<Body&, int64_t, int>) {
      (*static_cast<Body*>(user))(item, worker);
    } else {
      (void)worker;
      (*static_cast<Body*>(user))(item);
    }
  };
  return Phase{items, run, const_cast<void*>(static_cast<const void*>(&body))};
}

// Makes a phase of a member function `void run(int64_t item, int worker)`; the object must outlive run_phases.
template <auto Member, class Object>
Phase make_phase_of(int64_t items, Object* object) {
  auto run = [](void* user, int64_t item, int worker) { (static_cast<Object*>(user)->*Member)(item, worker); };
  return Phase{items, run, object};
}

// Phases that several parts of an operator add, to run them all with one fork.
class PhaseList {
 public:
  static constexpr int kMost = 16;

  void add(const Phase& phase) { phases_[count_++] = phase; }
  const Phase* data() const { return phases_; }
  int count() const { return count_; }

 private:
  Phase phases_[kMost];
  int count_ = 0;
};

// Tells the core that this thread only waits.
inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

namespace detail {

struct PhaseRun {
  const Phase* phases;
  int phase_count;
  int64_t total;
  // Each on a cache line of its own: claiming an item must not slow down a thread that watches `done`.
  alignas(64) std::atomic<int64_t> next{0};  // the lowest item that nobody has claimed
  alignas(64) std::atomic<int64_t> done{0};
  alignas(64) std::atomic<int> workers{0};

  void work() {
    // A call that comes late finds everything claimed; it must not take a worker number.
    int64_t item = next.load(std::memory_order_relaxed);
    if (item >= total) return;
    const DefaultFloatMode mode;
    const int worker = workers.fetch_add(1, std::memory_order_relaxed);
    int phase = 0;
    int64_t begin = 0;  // number of the first item of `phase`
    for (int spins = 0;; item = next.load(std::memory_order_relaxed)) {
      if (item >= total) return;
      while (item >= begin + phases[phase].items) begin += phases[phase++].items;
      if (done.load(std::memory_order_acquire) < begin) {
        pause_briefly();
        // With more threads than cores the one that is waited for may need this core.
        if (++spins % 4096 == 0) std::this_thread::yield();
        continue;
      }
      if (!next.compare_exchange_weak(item, item + 1, std::memory_order_relaxed)) continue;
      phases[phase].run(phases[phase].user, item - begin, worker);
      done.fetch_add(1, std::memory_order_acq_rel);
      spins = 0;
    }
  }
};

}  // namespace detail

// Runs the phases in order; returns when all are done. `run` must not throw and must not call run_phases.
inline void run_phases(const Executor& executor, const Phase* phases, int count) {
  int64_t total = 0, widest = 0;
  for (int i = 0; i < count; ++i) {
    total += phases[i].items;
    if (phases[i].items > widest) widest = phases[i].items;
  }
  if (widest <= 1 || executor.parallel_for == nullptr) {
    const DefaultFloatMode mode;
    for (int i = 0; i < count; ++i) {
      for (int64_t item = 0; item < phases[i].items; ++item) phases[i].run(phases[i].user, item, 0);
    }
    return;
  }
  detail::PhaseRun run{phases, count, total};
  const int64_t calls = widest < kMaxWorkers ? widest : kMaxWorkers;
  executor.parallel_for(
      executor.self, calls, [](void* user, int64_t) { static_cast<detail::PhaseRun*>(user)->work(); }, &run);
}

inline void run_phases(const Executor& executor, std::initializer_list<Phase> phases) {
  run_phases(executor, phases.begin(), static_cast<int>(phases.size()));
}

inline void run_phases(const Executor& executor, const PhaseList& phases) {
  run_phases(executor, phases.data(), phases.count());
}

}  // namespace edge_rt
