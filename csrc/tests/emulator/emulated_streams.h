// Streams and graphs of the emulated driver: queues of work and the order in which they run.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "gpu/cuda/driver.h"

namespace edge_rt::gpu {

namespace emulated {
using Item = std::function<CUresult()>;  // a piece of work
}

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
  // Runs what is queued, of other streams too if the order is drawn, until the given stream has nothing left; the first
  // error ends it.
  CUresult run_until_empty(CUstream stream);

 private:
  CUstream choose(CUstream waited_for);

  std::set<CUstream> streams_;
  std::mt19937_64 random_;
  bool is_drawn_ = false;
};

}  // namespace emulated
}  // namespace edge_rt::gpu
