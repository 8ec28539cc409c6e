#include "gpu/provider_session.h"

#include <cstdlib>
#include <utility>
#include <vector>

namespace edge_rt::gpu {
namespace {

// Of the entries of a run's options: the number of its graph; -1 records nothing.
constexpr const char* kGraphNumber = "gpu_graph_id";

ProviderSession& own(abi::Ep* self) { return *static_cast<ProviderSession*>(self); }

}  // namespace

ProviderSession::ProviderSession(const ProviderApi& api, const KernelList& kernels, const MemoryKind& memory,
                                 std::unique_ptr<PassStream> stream, bool records)
    : abi::Ep{}, api_(api), kernels_(kernels), memory_(memory), stream_(std::move(stream)), records_(records) {
  version = abi::kEpVersion;
  name = [](const abi::Ep*) { return kProviderName; };
  get_capability = [](abi::Ep* self, const abi::Graph* graph, abi::GraphSupport* support) -> abi::Status* {
    return guarded(own(self).api_, "claiming nodes", [&] { return own(self).claim(graph, support); });
  };
  kernel_registry = [](abi::Ep* self, const abi::KernelRegistry** out) -> abi::Status* {
    *out = own(self).kernels_.registry();
    return nullptr;
  };
  create_allocator = [](abi::Ep* self, const abi::MemoryInfo*, abi::AllocatorImpl** out) -> abi::Status* {
    return guarded(own(self).api_, "an allocator", [&]() -> abi::Status* {
      *out = new DeviceAllocator(own(self).memory_.info(), &own(self).stream().memory());
      return nullptr;
    });
  };
  // Passes share the stream and the memory of a session.
  can_run_concurrently = [](abi::Ep*, bool* out) -> abi::Status* {
    *out = false;
    return nullptr;
  };
  on_run_start = [](abi::Ep* self, const abi::RunOptions* options) -> abi::Status* {
    ProviderSession& session = own(self);
    return guarded(session.api_, "the beginning of a pass", [&]() -> abi::Status* {
      DriverError error;
      session.has_failed_ = false;
      session.run_count_ = 0;
      if (session.stream_->begin_pass(session.number_of(options), &error)) return nullptr;
      return session.api_.error("a pass cannot begin", error);
    });
  };
  on_run_end = [](abi::Ep* self, const abi::RunOptions*, bool) -> abi::Status* {
    ProviderSession& session = own(self);
    return guarded(session.api_, "the end of a pass", [&]() -> abi::Status* {
      DriverError error;
      const bool is_cut = session.has_failed_ || session.run_count_ != session.kernel_count_;
      // ONNX Runtime has the error of a node that failed.
      if (session.stream_->end_pass(is_cut, &error) || session.has_failed_) return nullptr;
      return session.api_.error("a pass failed", error);
    });
  };
  synchronise = [](abi::Ep* self) -> abi::Status* {
    DriverError error;
    if (own(self).stream_->context().settle(&error)) return nullptr;
    return own(self).api_.error("waiting for the GPU", error);
  };
  captures_graphs = [](const abi::Ep* self) { return static_cast<const ProviderSession*>(self)->records_; };
  is_captured = [](const abi::Ep* self, int number) {
    return static_cast<const ProviderSession*>(self)->stream_->has_graph(number);
  };
  replay = [](abi::Ep* self, int number) -> abi::Status* {
    return guarded(own(self).api_, "a recorded pass", [&]() -> abi::Status* {
      DriverError error;
      if (own(self).stream_->replay(number, &error)) return nullptr;
      return own(self).api_.error("a recorded pass failed", error);
    });
  };
  release_captured = [](abi::Ep* self, int number) -> abi::Status* {
    own(self).stream_->forget_graph(number);
    return nullptr;
  };
}

int ProviderSession::number_of(const abi::RunOptions* options) const {
  if (!records_) return kNoGraph;
  const char* const text = options == nullptr ? nullptr : api_.call<abi::RunConfigEntry>(options, kGraphNumber);
  return text == nullptr ? 0 : std::atoi(text);
}

abi::Status* ProviderSession::claim(const abi::Graph* graph, abi::GraphSupport* support) const {
  size_t count = 0;
  if (abi::Status* bad = api_.call<abi::GraphNodeCount>(graph, &count)) return bad;
  std::vector<const abi::Node*> nodes(count);
  if (abi::Status* bad = api_.call<abi::GraphNodes>(graph, nodes.data(), count)) return bad;
  for (const abi::Node* node : nodes) {
    const abi::KernelDef* kernel = nullptr;
    if (abi::Status* bad = api_.ep_call<abi::LookUpKernel>(support, node, &kernel)) return bad;
    if (kernel == nullptr) continue;
    if (abi::Status* bad = api_.ep_call<abi::AddSingleNode>(support, node)) return bad;
  }
  return nullptr;
}

}  // namespace edge_rt::gpu
