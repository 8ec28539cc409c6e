// The threads that compute: the caller of an operator, and helpers that stay between calls.
//
// Nobody waits for a thread that holds nothing: a helper that the system has taken from its core is missed, not waited
// for. Who waits for an item in another thread's hands spins for a few microseconds and then sleeps, so that this
// thread can have the core.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "common/parallel.h"

namespace edge_rt {

class Crew {
 public:
  // `threads` with the caller, at most kMaxWorkers; helpers start when they are first needed.
  explicit Crew(int threads);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Most threads of the jobs to come.
  void resize(int threads);
  int threads() const { return threads_.load(std::memory_order_relaxed); }

  // Runs the phases in order; returns when all are done. `run` must not throw and must not call this. Any number of
  // threads may call it; calls beyond kJobs at a time compute alone.
  void run(const Phase* phases, int count);

 private:
  static constexpr int kJobs = 4;

  struct Part {
    std::atomic<int64_t> end{0};  // number behind the last item, counted from the first phase's first
    std::atomic<decltype(Phase::run)> run{nullptr};
    std::atomic<void*> user{nullptr};
  };

  // A job's fields change while helpers may still look at the one before; whoever claims an item from `claim` has read
  // those of the job that it belongs to, as the turn says.
  struct Job {
    // Turn in the upper half, lowest item that nobody has claimed in the lower one. On lines of their own: claiming
    // must not slow down a thread that watches `done`.
    alignas(64) std::atomic<uint64_t> claim{kClosed};
    alignas(64) std::atomic<int64_t> done{0};
    alignas(64) std::atomic<int64_t> total{0};
    std::atomic<int> sleepers{0};
    std::atomic<bool> is_taken{false};
    Part parts[PhaseList::kMost];
    std::condition_variable progress;
  };

  static constexpr uint64_t kClosed = 0xffffffff;  // no item: none is claimed

  struct Helper {
    std::atomic<bool> is_asleep{false};
    std::condition_variable wake;
    std::thread thread;
  };

  void help(int worker);
  void start_helpers(int threads);
  Job* take_job();
  void publish(Job& job, const Phase* phases, int count, int64_t total, int threads);
  void work(Job& job, int worker);
  void wait_for(Job& job, uint64_t turn, int64_t items);

  std::atomic<int> threads_;
  std::atomic<int> started_{1};
  std::atomic<bool> stop_{false};
  Job jobs_[kJobs];
  alignas(64) std::atomic<uint32_t> news_{0};  // changes with every job
  std::mutex mutex_;                           // of all condition variables, and of `helpers_`
  std::unique_ptr<Helper> helpers_[kMaxWorkers];
};

// The crew of this process: its operators share it. One thread until `resize`.
Crew& process_crew();

inline void run_phases(Crew& crew, const Phase* phases, int count) { crew.run(phases, count); }

inline void run_phases(Crew& crew, std::initializer_list<Phase> phases) {
  crew.run(phases.begin(), static_cast<int>(phases.size()));
}

inline void run_phases(Crew& crew, const PhaseList& phases) { crew.run(phases.data(), phases.count()); }

}  // namespace edge_rt
