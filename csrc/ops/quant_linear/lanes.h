// Work that is a walk through memory, split so that every thread walks a stretch of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace edge_rt {

constexpr int kMaxLanes = 16;

// Pieces claimed so far, per lane.
struct LaneCounters {
  struct alignas(64) Counter {
    std::atomic<int64_t> next{0};
  };
  Counter lanes[kMaxLanes];
};

// `units` neighbouring pieces in lanes of equal length. A chunk is half of what is left of its lane, but not less than
// `least`: few claims, and short ones at the end. Every call of `claim` gives another chunk of `items()`.
class TileLanes {
 public:
  struct Range {
    int64_t begin, end, lane_end;
  };

  TileLanes(int64_t units, int64_t least, int lanes)
      : units_(units), least_(std::max<int64_t>(least, 1)), lanes_(std::clamp(lanes, 1, kMaxLanes)) {}

  int64_t items() const {
    int64_t total = 0;
    for (int lane = 0; lane < lanes_; ++lane) {
      for (int64_t left = first(lane + 1) - first(lane); left > 0; left -= chunk(left)) ++total;
    }
    return total;
  }

  // The next chunk of the worker's own lane, else of the first one that has any. To be called items() times in all.
  Range claim(LaneCounters& counters, int worker) const {
    for (int i = 0;; ++i) {
      const int lane = (worker + i) % lanes_;
      std::atomic<int64_t>& next = counters.lanes[lane].next;
      const int64_t length = first(lane + 1) - first(lane);
      int64_t begin = next.load(std::memory_order_relaxed);
      while (begin < length) {
        const int64_t end = begin + chunk(length - begin);
        if (next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) {
          return {first(lane) + begin, first(lane) + end, first(lane + 1)};
        }
      }
    }
  }

 private:
  int64_t first(int lane) const { return units_ * lane / lanes_; }
  int64_t chunk(int64_t left) const { return std::min(left, std::max(least_, (left + 1) / 2)); }

  int64_t units_;
  int64_t least_;
  int lanes_;
};

}  // namespace edge_rt
