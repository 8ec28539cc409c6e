// The provider in one session: which nodes are its own, when a pass begins and ends, and graphs of passes.
#pragma once

#include <memory>
#include <vector>

#include "gpu/pass_stream.h"
#include "gpu/provider_api.h"
#include "gpu/provider_kernels.h"
#include "gpu/provider_memory.h"
#include "gpu/weights_file.h"

namespace edge_rt::gpu {

class ProviderSession : public abi::Ep {
 public:
  // `records`: whether passes with a number are recorded as graphs. `first_layer`: layers before it, and what they
  // begin with, are left to the CPU; 0: none are. `kernels` and `memory` outlive it. `weights`: those it was given.
  ProviderSession(const ProviderApi& api, const KernelList& kernels, const MemoryKind& memory,
                  std::shared_ptr<WeightsFile> weights, std::unique_ptr<PassStream> stream, bool records,
                  int first_layer);

  PassStream& stream() { return *stream_; }
  // Kernels of the session, one a node; and those that have run in a pass. A pass that did not run all of them, because
  // one has failed or somebody stopped it, must not be recorded.
  void count_kernels(int more) { kernel_count_ += more; }
  void count_run(bool has_failed) {
    ++run_count_;
    has_failed_ = has_failed_ || has_failed;
  }

 private:
  abi::Status* claim(const abi::Graph* graph, abi::GraphSupport* support) const;
  // Drops the nodes before the first one of `first_layer_` from those of a graph, which are in the order of running.
  abi::Status* leave_early_layers(std::vector<const abi::Node*>* nodes) const;
  int number_of(const abi::RunOptions* options) const;

  const ProviderApi& api_;
  const KernelList& kernels_;
  const MemoryKind& memory_;
  const std::shared_ptr<WeightsFile> weights_;  // read until the last pass is done
  std::unique_ptr<PassStream> stream_;
  bool records_;
  int first_layer_;
  int kernel_count_ = 0, run_count_ = 0;
  bool has_failed_ = false;
};

}  // namespace edge_rt::gpu
