#include "common/crew.h"

#include <algorithm>
#include <chrono>

#include "common/float_mode.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <signal.h>
#endif

namespace edge_rt {
namespace {

using Clock = std::chrono::steady_clock;

// Nanoseconds.
constexpr int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;
// An item takes less, and waking a thread about as long.
constexpr int64_t kPatience = 30 * kMicrosecond;
// Between two passes lie the choice of a token and of a draft.
constexpr int64_t kIdleSpin = 1 * kMillisecond;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

void run_alone(const Phase* phases, int count) {
  const DefaultFloatMode mode;
  for (int i = 0; i < count; ++i) {
    for (int64_t item = 0; item < phases[i].items; ++item) phases[i].run(phases[i].user, item, 0);
  }
}

// Spins until `is_over()`, for `patience` at most; returns whether it is.
template <class Condition>
bool spin_until(const Condition& is_over, int64_t begun, int64_t patience) {
  do {
    for (int i = 0; i < 32; ++i) {
      if (is_over()) return true;
      pause_briefly();
    }
    std::this_thread::yield();
  } while (now_ns() - begun < patience);
  return is_over();
}

}  // namespace

Crew::Crew(int threads) : threads_(std::clamp(threads, 1, kMaxWorkers)) {}

Crew::~Crew() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
    for (auto& helper : helpers_) {
      if (helper != nullptr) helper->wake.notify_all();
    }
  }
  for (auto& helper : helpers_) {
    if (helper != nullptr && helper->thread.joinable()) helper->thread.join();
  }
}

void Crew::resize(int threads) { threads_.store(std::clamp(threads, 1, kMaxWorkers)); }

void Crew::start_helpers(int threads) {
  const std::lock_guard<std::mutex> lock(mutex_);
#if defined(__unix__) || defined(__APPLE__)
  // Signals are for threads that can answer them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
#endif
  for (int worker = started_.load(); worker < threads; ++worker) {
    try {
      helpers_[worker] = std::make_unique<Helper>();
      helpers_[worker]->thread = std::thread([this, worker] { help(worker); });
    } catch (const std::exception&) {
      // Fewer do as well: the caller alone is enough.
      helpers_[worker].reset();
      threads_.store(worker);
      break;
    }
    started_.store(worker + 1);
  }
#if defined(__unix__) || defined(__APPLE__)
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
#endif
}

void Crew::help(int worker) {
  Helper* self = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    self = helpers_[worker].get();
  }
  const auto is_wanted = [&] { return worker < threads_.load(std::memory_order_relaxed); };
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint32_t seen = news_.load();
    if (is_wanted()) {
      for (Job& job : jobs_) work(job, worker);
      const auto has_news = [&] { return news_.load(std::memory_order_acquire) != seen; };
      if (spin_until(has_news, now_ns(), kIdleSpin)) continue;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_.load()) {
      self->is_asleep.store(true);
      if (news_.load() != seen && is_wanted()) break;
      self->wake.wait(lock);
    }
    self->is_asleep.store(false);
  }
}

Crew::Job* Crew::take_job() {
  for (Job& job : jobs_) {
    if (!job.is_taken.load(std::memory_order_relaxed) && !job.is_taken.exchange(true, std::memory_order_acquire)) {
      return &job;
    }
  }
  return nullptr;
}

void Crew::publish(Job& job, const Phase* phases, int count, int64_t total, int threads) {
  const uint64_t turn = (job.claim.load(std::memory_order_relaxed) >> 32) + 1;
  // Closed before anything changes: a helper that has read a part of the new job claims nothing of the old one.
  job.claim.store(turn << 32 | kClosed);
  int64_t end = 0;
  for (int i = 0; i < PhaseList::kMost; ++i) {
    if (i < count) {
      end += phases[i].items;
      job.parts[i].run.store(phases[i].run, std::memory_order_release);
      job.parts[i].user.store(phases[i].user, std::memory_order_release);
    }
    job.parts[i].end.store(end, std::memory_order_release);
  }
  job.done.store(0, std::memory_order_release);
  job.total.store(total, std::memory_order_release);
  job.claim.store((turn + 1) << 32);
  news_.fetch_add(1);
  for (int worker = 1; worker < threads; ++worker) {
    Helper& helper = *helpers_[worker];
    if (helper.is_asleep.load() && helper.is_asleep.exchange(false)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      helper.wake.notify_one();
    }
  }
}

void Crew::work(Job& job, int worker) {
  uint64_t seen = job.claim.load(std::memory_order_acquire);
  const uint64_t turn = seen >> 32;
  const DefaultFloatMode mode;
  int part = 0;
  while (seen >> 32 == turn) {
    const auto item = static_cast<int64_t>(seen & kClosed);
    if (item >= job.total.load(std::memory_order_acquire)) return;
    while (part + 1 < PhaseList::kMost && item >= job.parts[part].end.load(std::memory_order_acquire)) ++part;
    const int64_t begin = part == 0 ? 0 : job.parts[part - 1].end.load(std::memory_order_acquire);
    const int64_t end = job.parts[part].end.load(std::memory_order_acquire);
    const auto run = job.parts[part].run.load(std::memory_order_acquire);
    void* const user = job.parts[part].user.load(std::memory_order_acquire);
    if (job.done.load(std::memory_order_acquire) < begin) {
      wait_for(job, turn, begin);
      seen = job.claim.load(std::memory_order_acquire);
      continue;
    }
    if (!job.claim.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    run(user, item - begin, worker);
    if (job.done.fetch_add(1) + 1 == end && job.sleepers.load() > 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      job.progress.notify_all();
    }
    seen = job.claim.load(std::memory_order_acquire);
  }
}

// Returns when so many items are done, or another job is in this one's place.
void Crew::wait_for(Job& job, uint64_t turn, int64_t items) {
  const auto is_over = [&] { return job.done.load() >= items || job.claim.load() >> 32 != turn; };
  for (int i = 0; i < 64; ++i) {
    if (is_over()) return;
    pause_briefly();
  }
  if (spin_until(is_over, now_ns(), kPatience)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  job.sleepers.fetch_add(1);
  while (!is_over()) job.progress.wait(lock);
  job.sleepers.fetch_sub(1);
}

void Crew::run(const Phase* phases, int count) {
  for (; count > PhaseList::kMost; phases += PhaseList::kMost, count -= PhaseList::kMost) run(phases, PhaseList::kMost);
  int64_t total = 0, widest = 0;
  for (int i = 0; i < count; ++i) {
    total += phases[i].items;
    widest = std::max(widest, phases[i].items);
  }
  const int threads = this->threads();
  const bool is_shared = widest > 1 && threads > 1 && total < static_cast<int64_t>(kClosed);
  Job* const job = is_shared ? take_job() : nullptr;
  if (job == nullptr) return run_alone(phases, count);
  if (started_.load(std::memory_order_acquire) < threads) start_helpers(threads);
  publish(*job, phases, count, total, std::min(threads, started_.load(std::memory_order_acquire)));
  const uint64_t turn = job->claim.load(std::memory_order_relaxed) >> 32;
  work(*job, 0);
  wait_for(*job, turn, total);
  job->is_taken.store(false, std::memory_order_release);
}

Crew& process_crew() {
  // Never destroyed: a helper may still look at it when the process ends.
  static Crew* const crew = new Crew(1);
  return *crew;
}

}  // namespace edge_rt
