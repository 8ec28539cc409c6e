// Phases on 1 to 8 threads: every item once, in the order of the phases, with worker numbers that are nobody else's.
#include "common/crew.h"

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/check.h"

namespace edge_rt {
namespace {

// Item counts with empty phases at both ends and in between, single items, and more items than threads.
const std::vector<int64_t> kItems = {0, 5, 1, 0, 64, 3, 1, 1, 200, 2, 0, 17, 0};

void every_item_once_and_in_order(Crew& crew) {
  const int64_t total = std::accumulate(kItems.begin(), kItems.end(), int64_t{0});
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
  crew.run(phases.data(), static_cast<int>(phases.size()));
  for (const int count : calls) CHECK(count == 1);
}

void on_every_number_of_threads() {
  for (int threads = 1; threads <= 8; ++threads) {
    Crew crew(threads);
    for (int repeat = 0; repeat < 50; ++repeat) every_item_once_and_in_order(crew);
    CHECK(crew.threads() == threads);
  }
}

// Small jobs one after the other: helpers come late, and find the next one in a job's place.
void jobs_follow_each_other() {
  Crew crew(4);
  int64_t sum = 0;
  std::atomic<int64_t> parts{0};
  auto add = [&](int64_t item) { parts += item; };
  auto take = [&](int64_t) { sum += parts.exchange(0); };
  for (int repeat = 0; repeat < 20000; ++repeat) run_phases(crew, {make_phase(3, add), make_phase(1, take)});
  CHECK(sum == 20000 * 3 && parts == 0);
}

void callers_share_a_crew() {
  Crew crew(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 50; ++repeat) every_item_once_and_in_order(crew);
    });
  }
  for (int threads = 1; threads <= 8; ++threads) {
    crew.resize(threads);
    every_item_once_and_in_order(crew);
  }
  for (std::thread& caller : callers) caller.join();
}

// Items that end when as many run at once: with fewer threads they never would.
void all_threads_take_part(Crew& crew) {
  const int threads = crew.threads();
  std::atomic<int> running{0};
  const auto begun = std::chrono::steady_clock::now();
  auto meet = [&](int64_t) {
    ++running;
    while (running < threads) {
      CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(60));
      std::this_thread::yield();
    }
  };
  run_phases(crew, {make_phase(threads, meet)});
}

void helpers_take_part_awake_and_woken() {
  for (int threads = 2; threads <= 5; ++threads) {
    Crew crew(threads);
    all_threads_take_part(crew);
    all_threads_take_part(crew);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    all_threads_take_part(crew);
  }
}

void helpers_wake_after_a_pause() {
  Crew crew(3);
  for (int repeat = 0; repeat < 20; ++repeat) {
    every_item_once_and_in_order(crew);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

void nothing_is_shared_for_single_items() {
  Crew crew(4);
  int order = 0;
  const std::thread::id caller = std::this_thread::get_id();
  auto first = [&](int64_t) { CHECK(order++ == 0 && std::this_thread::get_id() == caller); };
  auto second = [&](int64_t) { CHECK(order++ == 1 && std::this_thread::get_id() == caller); };
  run_phases(crew, {make_phase(1, first), make_phase(0, first), make_phase(1, second)});
  CHECK(order == 2);
  crew.run(nullptr, 0);
}

void more_phases_than_a_list_holds() {
  Crew crew(2);
  std::vector<int64_t> seen;
  auto body = [&](int64_t item) { seen.push_back(item); };
  const std::vector<Phase> phases(3 * PhaseList::kMost + 1, make_phase(1, body));
  crew.run(phases.data(), static_cast<int>(phases.size()));
  CHECK(seen.size() == phases.size());
}

}  // namespace
}  // namespace edge_rt

int main() {
  edge_rt::on_every_number_of_threads();
  edge_rt::jobs_follow_each_other();
  edge_rt::callers_share_a_crew();
  edge_rt::helpers_take_part_awake_and_woken();
  edge_rt::helpers_wake_after_a_pause();
  edge_rt::nothing_is_shared_for_single_items();
  edge_rt::more_phases_than_a_list_holds();
  return 0;
}
