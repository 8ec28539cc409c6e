// Work that is a walk through memory, split so that every thread walks a stretch of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace edge_rt {

constexpr int kMaxLanes = 16;

// Chunks claimed so far, per lane.
struct LaneCounters {
  struct alignas(64) Counter {
    std::atomic<int64_t> next{0};
  };
  Counter lanes[kMaxLanes];
};

// `units` neighbouring pieces in lanes of equal length, each lane cut into chunks. Every call of `claim` gives another
// chunk; there are `items()` of them.
class Lanes {
 public:
  struct Range {
    int64_t begin, end, lane_end;
  };

  Lanes(int64_t units, int64_t chunk, int lanes)
      : units_(units), chunk_(std::max<int64_t>(chunk, 1)), lanes_(std::clamp(lanes, 1, kMaxLanes)) {}

  int64_t items() const {
    int64_t total = 0;
    for (int lane = 0; lane < lanes_; ++lane) total += chunks(lane);
    return total;
  }

  // The next chunk of the worker's own lane, else of the first one that has any. To be called items() times in all.
  Range claim(LaneCounters& counters, int worker) const {
    for (int i = 0;; ++i) {
      const int lane = (worker + i) % lanes_;
      const int64_t count = chunks(lane);
      if (counters.lanes[lane].next.load(std::memory_order_relaxed) >= count) continue;
      const int64_t chunk = counters.lanes[lane].next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= count) continue;
      const int64_t begin = first(lane) + chunk * chunk_;
      return {begin, std::min(begin + chunk_, first(lane + 1)), first(lane + 1)};
    }
  }

 private:
  int64_t first(int lane) const { return units_ * lane / lanes_; }
  int64_t chunks(int lane) const { return (first(lane + 1) - first(lane) + chunk_ - 1) / chunk_; }

  int64_t units_;
  int64_t chunk_;
  int lanes_;
};

}  // namespace edge_rt
