// The kernels of the provider: for each operator one that checks what it is given as the operator does on a CPU, and
// then starts work on the session's stream. Schemas are those of the library of operators, which a session registers,
// too.
//
// A GPU operator looks like this (ort/op.h):
//
//   struct Scale {
//     static constexpr const char* kName = "Scale";
//     static constexpr ort::Port kInputs[] = {{"x", abi::kFloat}};
//     static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}};
//     static constexpr int kOnHost[] = {-1};  // numbers of inputs that stay in host memory, to be checked; -1: none
//     static constexpr OnnxVersions kVersions{1, 13};             // of operators of ONNX only: what it is for
//     static constexpr OnnxType kTypes[] = {{"T", abi::kFloat}};
//     abi::Status* create(ort::Attributes&);
//     abi::Status* enqueue(ort::OpContext&, PassStream&) const;
//   };
#pragma once

#include <climits>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "gpu/onnx_types.h"
#include "gpu/pass_stream.h"
#include "gpu/provider_api.h"
#include "ort/op.h"

namespace edge_rt::gpu {

class ProviderSession;

// What the kernels of all operators share.
class KernelBase : public abi::KernelImpl {
 public:
  KernelBase(const ProviderApi& used_api) : abi::KernelImpl{}, api(used_api) { version = abi::kEpVersion; }
  virtual ~KernelBase();
  KernelBase(const KernelBase&) = delete;
  KernelBase& operator=(const KernelBase&) = delete;

  // Finds the session and its memory.
  abi::Status* open(const abi::KernelInfo* info);
  // Runs what a kernel does in a pass, and tells the session how it went.
  template <class Body>
  abi::Status* run(const char* op, Body body) {
    abi::Status* bad = guarded(api, op, body);
    GpuError error = stream().take_error();
    // Of memory that is missing ONNX Runtime does not know why.
    if (bad != nullptr && !error) error = stream().device().failure();
    if (error && bad != nullptr) api.ort.call<abi::ReleaseStatus>(std::exchange(bad, nullptr));
    if (error) bad = api.error(op, error);
    count_run(bad != nullptr);
    return bad;
  }
  PassStream& stream() const;

  const ProviderApi& api;
  abi::Allocator* allocator = nullptr;

 private:
  void count_run(bool has_failed) const;

  ProviderSession* session_ = nullptr;
};

template <class Op>
class OpKernel : public KernelBase {
 public:
  static constexpr int kInputCount = static_cast<int>(std::size(Op::kInputs));
  static constexpr int kOutputCount = static_cast<int>(std::size(Op::kOutputs));
  static constexpr ort::OpShape kShape{Op::kName, std::data(Op::kInputs), kInputCount, std::data(Op::kOutputs),
                                       kOutputCount};

  explicit OpKernel(const ProviderApi& used_api) : KernelBase(used_api) {
    compute = [](abi::KernelImpl* self, abi::KernelContext* raw) -> abi::Status* {
      auto& kernel = *static_cast<OpKernel*>(self);
      return kernel.run(Op::kName, [&]() -> abi::Status* {
        ort::OpContext context(kernel.api.ort, raw, kShape, kernel.allocator);
        if (abi::Status* bad = context.read_inputs()) return bad;
        return kernel.op_.enqueue(context, kernel.stream());
      });
    };
    release = [](abi::KernelImpl* self) { delete static_cast<OpKernel*>(self); };
  }

  static abi::Status* make(void* state, const abi::KernelInfo* info, abi::KernelImpl** out) {
    const auto& used_api = *static_cast<const ProviderApi*>(state);
    *out = nullptr;
    return guarded(used_api, Op::kName, [&]() -> abi::Status* {
      auto kernel = std::make_unique<OpKernel>(used_api);
      if (abi::Status* bad = kernel->open(info)) return bad;
      ort::Attributes attributes(used_api.ort, info, kShape, Isa::kScalar);
      abi::Status* bad = kernel->op_.create(attributes);
      // A missing attribute is the cause of whatever `create` found wrong with the value that stands in for it.
      if (abi::Status* problem = attributes.take_problem()) {
        if (bad != nullptr) used_api.call<abi::ReleaseStatus>(bad);
        return problem;
      }
      if (bad == nullptr) *out = kernel.release();
      return bad;
    });
  }

 private:
  Op op_;
};

// All kernels, as ONNX Runtime looks them up. The object outlives its sessions.
class KernelList {
 public:
  explicit KernelList(const ProviderApi& api) : api_(api) {}
  ~KernelList();
  KernelList(const KernelList&) = delete;
  KernelList& operator=(const KernelList&) = delete;

  // The operators of a list, and copies between host and device.
  template <class... Ops, template <class...> class List>
  abi::Status* create(List<Ops...>) {
    abi::Status* bad = create_registry();
    ((bad = bad != nullptr ? bad : add<Ops>()), ...);
    return bad != nullptr ? bad : add_copies();
  }
  const abi::KernelRegistry* registry() const { return registry_; }

 private:
  struct Entry {
    const char* domain;
    const char* name;
    const int* on_host;  // inputs in host memory; -1: none
    int on_host_count;
    bool gives_host;  // the output lies in host memory
    abi::CreateKernel* make;
    OnnxVersions versions{1, INT_MAX};
    const OnnxType* types = nullptr;
    int type_count = 0;
  };

  abi::Status* create_registry();
  abi::Status* add(const Entry& entry);
  abi::Status* describe(abi::KernelDefBuilder* builder, const Entry& entry);
  abi::Status* limit_types(abi::KernelDefBuilder* builder, const Entry& entry);
  abi::Status* add_copies();

  template <class Op>
  abi::Status* add() {
    using Types = OnnxTypes<Op>;
    return add({Types::kDomain, Op::kName, std::data(Op::kOnHost), static_cast<int>(std::size(Op::kOnHost)), false,
                OpKernel<Op>::make, Types::kVersions, Types::kTypes, Types::kCount});
  }

  const ProviderApi& api_;
  abi::KernelRegistry* registry_ = nullptr;
};

}  // namespace edge_rt::gpu
