#include "gpu/provider_session.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace edge_rt::gpu {
namespace {

// Of the entries of a run's options: the number of its graph; -1 records nothing.
constexpr const char* kGraphNumber = "gpu_graph_id";

ProviderSession& own(abi::Ep* self) { return *static_cast<ProviderSession*>(self); }

// The number in the name of a node of a layer, such as 12 in "layer12.qkv/QuantLinear"; -1 for other nodes.
// `edge_rt/package/layer_sizes.py` reads names in the same way.
int layer_of(const char* name) {
  constexpr char kPrefix[] = "layer";
  constexpr size_t kLength = sizeof(kPrefix) - 1;
  if (std::strncmp(name, kPrefix, kLength) != 0 || name[kLength] < '0' || name[kLength] > '9') return -1;
  return std::atoi(name + kLength);
}

}  // namespace

ProviderSession::ProviderSession(const ProviderApi& api, const KernelList& kernels, const MemoryKind& memory,
                                 std::shared_ptr<WeightsFile> weights, std::unique_ptr<PassStream> stream, bool records,
                                 int first_layer)
    : abi::Ep{}, api_(api), kernels_(kernels), memory_(memory), weights_(std::move(weights)),
      stream_(std::move(stream)), records_(records), first_layer_(first_layer) {
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
      GpuError error;
      session.has_failed_ = false;
      session.run_count_ = 0;
      if (session.stream_->begin_pass(session.number_of(options), &error)) return nullptr;
      return session.api_.error("a pass cannot begin", error);
    });
  };
  on_run_end = [](abi::Ep* self, const abi::RunOptions*, bool) -> abi::Status* {
    ProviderSession& session = own(self);
    return guarded(session.api_, "the end of a pass", [&]() -> abi::Status* {
      GpuError error;
      const bool is_cut = session.has_failed_ || session.run_count_ != session.kernel_count_;
      // ONNX Runtime has the error of a node that failed.
      if (session.stream_->end_pass(is_cut, &error) || session.has_failed_) return nullptr;
      return session.api_.error("a pass failed", error);
    });
  };
  synchronise = [](abi::Ep* self) -> abi::Status* {
    return guarded(own(self).api_, "waiting for the GPU", [&]() -> abi::Status* {
      GpuError error;
      if (own(self).stream_->device().settle(&error)) return nullptr;
      return own(self).api_.error("waiting for the GPU", error);
    });
  };
  captures_graphs = [](const abi::Ep* self) { return static_cast<const ProviderSession*>(self)->records_; };
  is_captured = [](const abi::Ep* self, int number) {
    return static_cast<const ProviderSession*>(self)->stream_->has_graph(number);
  };
  replay = [](abi::Ep* self, int number) -> abi::Status* {
    return guarded(own(self).api_, "a recorded pass", [&]() -> abi::Status* {
      GpuError error;
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
  if (abi::Status* bad = leave_early_layers(&nodes)) return bad;
  for (const abi::Node* node : nodes) {
    const abi::KernelDef* kernel = nullptr;
    if (abi::Status* bad = api_.ep_call<abi::LookUpKernel>(support, node, &kernel)) return bad;
    if (kernel == nullptr) continue;
    if (abi::Status* bad = api_.ep_call<abi::AddSingleNode>(support, node)) return bad;
  }
  return nullptr;
}

abi::Status* ProviderSession::leave_early_layers(std::vector<const abi::Node*>* nodes) const {
  if (first_layer_ == 0) return nullptr;
  // A layer needs what those before it have computed, so that one place divides the graph. Only rows of the last
  // layer's input, which reads no weights, may be chosen before that place.
  for (auto node = nodes->begin(); node != nodes->end(); ++node) {
    const char* name = nullptr;
    if (abi::Status* bad = api_.call<abi::NodeName>(*node, &name)) return bad;
    if (name == nullptr || layer_of(name) < first_layer_) continue;
    nodes->erase(nodes->begin(), node);
    return nullptr;
  }
  // ONNX Runtime takes that for a provider that computes nothing, and edge-rt sees where nodes are.
  return api_.error(
      "layers are divided between the CPU and the GPU, but no node of the graph is named as one of layer " +
      std::to_string(first_layer_) + " or a later one");
}

}  // namespace edge_rt::gpu
