// Work in phases: several parallel loops, one after the other, for the price of one fork and join.
//
// Items of all phases are numbered through. A thread claims the lowest item that nobody has claimed, but only once
// every item of the earlier phases is done; until then it holds nothing. So each claimed item is being run by the
// thread that claimed it, and the loops end whatever number of threads there is: one is enough (common/crew.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace edge_rt {

// Most threads that ever work on one set of phases, so also the bound of the worker numbers.
constexpr int kMaxWorkers = 64;

// One parallel loop. `run` is called once for every item below `items`, in any order, and sees everything that earlier
// phases wrote. `worker` (0 <= worker < kMaxWorkers) is the number of the calling thread: no two threads share one, so
// it may index scratch memory. What is computed must not depend on it.
struct Phase {
  int64_t items;
  void (*run)(void* user, int64_t item, int worker);
  void* user;
};

// Makes a phase of a callable `body(item)` or `body(item, worker)`, which must outlive the run.
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

}  // namespace edge_rt
