// Phases on 1 to 8 threads: every item once, in the order of the phases, with worker numbers that are nobody else's.
#include "common/parallel.h"

#include <atomic>
#include <numeric>
#include <vector>

#include "tests/check.h"
#include "tests/thread_executor.h"

namespace edge_rt {
namespace {

// Item counts with empty phases at both ends and in between, single items, and more items than threads.
const std::vector<int64_t> kItems = {0, 5, 1, 0, 64, 3, 1, 1, 200, 2, 0, 17, 0};

void every_item_once_and_in_order(int threads) {
  const int64_t total = std::accumulate(kItems.begin(), kItems.end(), int64_t{0});
  ThreadExecutor pool(threads);
  std::vector<int> calls(static_cast<size_t>(total), 0);  // plain: the phases have to order the accesses
  std::vector<std::atomic<int>> busy(kMaxWorkers);
  int64_t before = 0;
  struct Body {
    std::vector<int>* calls;
    std::vector<std::atomic<int>>* busy;
    int64_t begin;
    void operator()(int64_t item, int worker) const {
      CHECK(worker >= 0 && worker < kMaxWorkers);
      CHECK((*busy)[static_cast<size_t>(worker)].exchange(1) == 0);
      for (int64_t i = 0; i < begin; ++i) CHECK((*calls)[static_cast<size_t>(i)] == 1);
      ++(*calls)[static_cast<size_t>(begin + item)];
      (*busy)[static_cast<size_t>(worker)].store(0);
    }
  };
  std::vector<Body> bodies;
  for (const int64_t items : kItems) {
    bodies.push_back({&calls, &busy, before});
    before += items;
  }
  std::vector<Phase> phases;
  for (size_t i = 0; i < kItems.size(); ++i) phases.push_back(make_phase(kItems[i], bodies[i]));
  run_phases(pool.executor(), phases.data(), static_cast<int>(phases.size()));
  for (const int count : calls) CHECK(count == 1);
  CHECK(pool.forks() == 1);
}

void nothing_is_forked_for_single_items() {
  ThreadExecutor pool(4);
  int order = 0;
  auto first = [&](int64_t) { CHECK(order++ == 0); };
  auto second = [&](int64_t) { CHECK(order++ == 1); };
  run_phases(pool.executor(), {make_phase(1, first), make_phase(0, first), make_phase(1, second)});
  CHECK(order == 2 && pool.forks() == 0);
}

void without_threads() {
  std::vector<int64_t> seen;
  auto first = [&](int64_t item) { seen.push_back(item); };
  auto second = [&](int64_t item, int worker) { seen.push_back(10 * (item + 1) + worker); };
  run_phases(Executor{}, {make_phase(3, first), make_phase(2, second)});
  CHECK((seen == std::vector<int64_t>{0, 1, 2, 10, 20}));
  run_phases(Executor{}, nullptr, 0);
}

// A pool that makes all calls in the caller, later ones after everything is done, must still end.
void calls_that_find_nothing_left() {
  int64_t made = 0;
  Executor inline_pool{&made, [](void* self, int64_t n, void (*function)(void*, int64_t), void* user) {
                         for (int64_t i = 0; i < n; ++i) function(user, i);
                         *static_cast<int64_t*>(self) += n;
                       }};
  int64_t sum = 0;
  auto body = [&](int64_t item, int worker) {
    CHECK(worker == 0);
    sum += item;
  };
  run_phases(inline_pool, {make_phase(100, body), make_phase(100, body)});
  CHECK(sum == 2 * 4950 && made == kMaxWorkers);
}

}  // namespace
}  // namespace edge_rt

int main() {
  for (int threads = 1; threads <= 8; ++threads) {
    for (int repeat = 0; repeat < 50; ++repeat) edge_rt::every_item_once_and_in_order(threads);
  }
  edge_rt::nothing_is_forked_for_single_items();
  edge_rt::without_threads();
  edge_rt::calls_that_find_nothing_left();
  return 0;
}
