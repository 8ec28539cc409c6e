// An Executor on threads of its own, for programs without ONNX Runtime.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "common/parallel.h"

namespace edge_rt {

// Gives out the calls of each parallel_for one by one to `threads` threads, started anew every time.
class ThreadExecutor {
 public:
  explicit ThreadExecutor(int threads) : threads_(threads) {}

  Executor executor() {
    return Executor{this, [](void* self, int64_t n, void (*function)(void*, int64_t), void* user) {
                      static_cast<ThreadExecutor*>(self)->run(n, function, user);
                    }};
  }

  int64_t forks() const { return forks_; }

 private:
  void run(int64_t n, void (*function)(void*, int64_t), void* user) {
    ++forks_;
    std::atomic<int64_t> next{0};
    auto work = [&] {
      for (int64_t i = next.fetch_add(1); i < n; i = next.fetch_add(1)) function(user, i);
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads_; ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  }

  int threads_;
  int64_t forks_ = 0;
};

}  // namespace edge_rt
