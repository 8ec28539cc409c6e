#include "gpu/provider_kernels.h"

#include "gpu/provider_session.h"

namespace edge_rt::gpu {

KernelBase::~KernelBase() {
  if (allocator != nullptr) api.call<abi::ReleaseAllocator>(allocator);
  if (session_ != nullptr) session_->count_kernels(-1);
}

abi::Status* KernelBase::open(const abi::KernelInfo* info) {
  const abi::Ep* ep = nullptr;
  if (abi::Status* bad = api.ep_call<abi::KernelInfoEp>(info, &ep)) return bad;
  session_ = static_cast<ProviderSession*>(const_cast<abi::Ep*>(ep));
  session_->count_kernels(1);
  return api.call<abi::KernelInfoGetAllocator>(info, static_cast<int>(abi::kDefaultMemory), &allocator);
}

PassStream& KernelBase::stream() const { return session_->stream(); }

void KernelBase::count_run(bool has_failed) const { session_->count_run(has_failed); }

namespace {

// ONNX Runtime puts these two between nodes of the provider and of others.
class CopyKernel : public KernelBase {
 public:
  explicit CopyKernel(const ProviderApi& used_api, Way way) : KernelBase(used_api), way_(way) {
    compute = [](abi::KernelImpl* self, abi::KernelContext* context) -> abi::Status* {
      auto& kernel = *static_cast<CopyKernel*>(self);
      return kernel.run("a copy", [&] { return kernel.copy(context); });
    };
    release = [](abi::KernelImpl* self) { delete static_cast<CopyKernel*>(self); };
  }

  template <Way way>
  static abi::Status* make(void* state, const abi::KernelInfo* info, abi::KernelImpl** out) {
    const auto& used_api = *static_cast<const ProviderApi*>(state);
    *out = nullptr;
    return guarded(used_api, "a copy", [&]() -> abi::Status* {
      auto kernel = std::make_unique<CopyKernel>(used_api, way);
      if (abi::Status* bad = kernel->open(info)) return bad;
      *out = kernel.release();
      return nullptr;
    });
  }

 private:
  static constexpr ort::Port kInputs[] = {{"x", abi::kUndefined}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kUndefined}};
  static constexpr ort::OpShape kShape{"Memcpy", kInputs, 1, kOutputs, 1};

  abi::Status* copy(abi::KernelContext* raw) {
    const abi::Value* from = nullptr;
    size_t bytes = 0;
    ort::OpContext context(api.ort, raw, kShape, allocator);
    if (abi::Status* bad = context.read_inputs()) return bad;
    if (abi::Status* bad = api.call<abi::GetInput>(static_cast<const abi::KernelContext*>(raw), size_t{0}, &from)) {
      return bad;
    }
    if (abi::Status* bad = api.call<abi::GetTensorBytes>(from, &bytes)) return bad;
    const ort::TensorView& x = context.input(0);
    ort::TensorView y;
    if (abi::Status* bad = context.output(0, x.dims, x.rank, &y)) return bad;
    GpuError error;
    if (!y.present || stream().device().copy(way_, y.data, x.data, bytes, &error)) return nullptr;
    return api.error("a copy of " + std::to_string(bytes) + " bytes", error);
  }

  Way way_;
};

constexpr int kNone[] = {-1};
constexpr int kFirst[] = {0};

}  // namespace

KernelList::~KernelList() {
  if (registry_ != nullptr) api_.ep_call<abi::ReleaseKernelRegistry>(registry_);
}

abi::Status* KernelList::create_registry() { return api_.ep_call<abi::CreateKernelRegistry>(&registry_); }

abi::Status* KernelList::add(const Entry& entry) {
  abi::KernelDefBuilder* builder = nullptr;
  if (abi::Status* bad = api_.ep_call<abi::CreateKernelDefBuilder>(&builder)) return bad;
  abi::Status* bad = describe(builder, entry);
  abi::KernelDef* kernel = nullptr;
  if (bad == nullptr) bad = api_.ep_call<abi::BuildKernelDef>(builder, &kernel);
  if (bad == nullptr) {
    bad = api_.ep_call<abi::AddKernel>(registry_, static_cast<const abi::KernelDef*>(kernel), entry.make,
                                       const_cast<void*>(static_cast<const void*>(&api_)));
  }
  if (kernel != nullptr) api_.ep_call<abi::ReleaseKernelDef>(kernel);
  api_.ep_call<abi::ReleaseKernelDefBuilder>(builder);
  return bad;
}

abi::Status* KernelList::describe(abi::KernelDefBuilder* builder, const Entry& entry) {
  abi::Status* bad = nullptr;
  if ((bad = api_.ep_call<abi::SetOperatorType>(builder, entry.name)) != nullptr ||
      (bad = api_.ep_call<abi::SetDomain>(builder, entry.domain)) != nullptr ||
      (bad = api_.ep_call<abi::SetSinceVersion>(builder, entry.versions.first, entry.versions.last)) != nullptr ||
      (bad = api_.ep_call<abi::SetProvider>(builder, kProviderName)) != nullptr) {
    return bad;
  }
  for (int i = 0; i < entry.on_host_count; ++i) {
    if (entry.on_host[i] < 0) continue;
    bad = api_.ep_call<abi::SetInputMemory>(builder, static_cast<size_t>(entry.on_host[i]),
                                            static_cast<int>(abi::kCpuInput));
    if (bad != nullptr) return bad;
  }
  if (abi::Status* bad_type = limit_types(builder, entry)) return bad_type;
  if (!entry.gives_host) return nullptr;
  return api_.ep_call<abi::SetOutputMemory>(builder, size_t{0}, static_cast<int>(abi::kCpuOutput));
}

abi::Status* KernelList::limit_types(abi::KernelDefBuilder* builder, const Entry& entry) {
  for (int i = 0; i < entry.type_count; ++i) {
    const abi::DataType* type = nullptr;
    if (abi::Status* bad = api_.ep_call<abi::TensorDataType>(entry.types[i].type, &type)) return bad;
    const abi::DataType* const types[] = {type};
    if (abi::Status* bad = api_.ep_call<abi::AddTypeConstraint>(
            builder, entry.types[i].name, static_cast<const abi::DataType* const*>(types), size_t{1})) {
      return bad;
    }
  }
  return nullptr;
}

abi::Status* KernelList::add_copies() {
  if (abi::Status* bad = add({"", "MemcpyFromHost", kFirst, 1, false, CopyKernel::make<Way::kToDevice>})) {
    return bad;
  }
  return add({"", "MemcpyToHost", kNone, 1, true, CopyKernel::make<Way::kToHost>});
}

}  // namespace edge_rt::gpu
