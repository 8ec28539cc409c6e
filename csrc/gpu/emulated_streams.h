// Streams, events and graphs of the emulated driver: queues of work and the order in which they run.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "gpu/driver.h"

namespace edge_rt::gpu {

struct CUevent_st {
  uint64_t recorded = 0, done = 0;  // numbers of recordings
};

namespace emulated {

// A piece of work; one that waits for an event begins when that recording is done.
struct Item {
  std::function<CUresult()> run;
  CUevent_st* wait = nullptr;
  uint64_t recording = 0;

  bool can_run() const { return wait == nullptr || wait->done >= recording; }
};

}  // namespace emulated

struct CUgraph_st {
  std::vector<emulated::Item> items;
};

struct CUgraphExec_st {
  std::shared_ptr<const CUgraph_st> graph;
};

struct CUstream_st {
  std::deque<emulated::Item> queue;
  std::unique_ptr<CUgraph_st> capture;  // what was called since the capture began
  bool is_capture_broken = false;
};

namespace emulated {

// All streams of the device; calls are made under the driver's lock.
class Streams {
 public:
  void seed(uint64_t seed) {
    random_.seed(seed);
    is_drawn_ = seed != 0;
  }
  uint64_t draw() { return is_drawn_ ? random_() | 1 : 0; }

  CUstream make();
  bool is_live(CUstream stream) const { return streams_.count(stream) != 0; }
  void destroy(CUstream stream);
  size_t count() const { return streams_.size(); }

  // To its queue, or to the graph that is captured.
  void add(CUstream stream, Item item);
  // Runs until `is_done` holds, beginning with the given stream, or any; the first error ends it.
  CUresult run(CUstream first, const std::function<bool()>& is_done);

 private:
  CUstream choose(CUstream first);

  std::set<CUstream> streams_;
  std::mt19937_64 random_;
  bool is_drawn_ = false;
};

}  // namespace emulated
}  // namespace edge_rt::gpu
