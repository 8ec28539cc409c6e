// Weights that sessions find in the memory of a GPU when they are opened, instead of letting ONNX Runtime copy them
// there: edge-rt's Python lays them there, and names those of a session before it registers this library with the
// session's options, as if it had operators.
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "common/export.h"
#include "gpu/kept_gpus.h"
#include "gpu/provider_api.h"
#include "gpu/provider_memory.h"
#include "gpu/weights_file.h"
#include "ort/op.h"

namespace edge_rt::gpu {
namespace {

// Weights of a file for the sessions of a model.
class ModelWeights {
 public:
  explicit ModelWeights(std::shared_ptr<WeightsFile> file) : file_(std::move(file)) {}
  ModelWeights(const ModelWeights&) = delete;
  ModelWeights& operator=(const ModelWeights&) = delete;
  ~ModelWeights() {
    for (abi::Value* value : values_) api_.call<abi::ReleaseValue>(value);
  }

  WeightsFile& file() { return *file_; }
  const std::shared_ptr<WeightsFile>& shared() const { return file_; }

  // Sessions keep what is added, but only as long as this lives.
  abi::Status* add(const ProviderApi& api, abi::SessionOptions* options, const std::string& name, void* address,
                   size_t bytes, int type, const std::vector<int64_t>& dims) {
    api_ = api;
    if (kind_.info() == nullptr) {
      if (abi::Status* bad = kind_.create(file_->number())) return bad;
    }
    abi::Value* value = nullptr;
    if (abi::Status* bad =
            api.call<abi::CreateTensorOver>(kind_.info(), address, bytes, dims.data(), dims.size(), type, &value)) {
      return bad;
    }
    values_.push_back(value);
    return api.call<abi::AddInitializer>(options, name.c_str(), static_cast<const abi::Value*>(value));
  }

 private:
  const std::shared_ptr<WeightsFile> file_;
  ProviderApi api_;
  MemoryKind kind_{api_};
  std::vector<abi::Value*> values_;
};

struct Offered {
  ModelWeights* weights;
  std::string name;
  FilePart part;
  int type;
  std::vector<int64_t> dims;
};

// Of the session that the thread opens next.
std::vector<Offered>& offered() {
  static thread_local std::vector<Offered> list;
  return list;
}

thread_local std::string last_error;

abi::Status* add_offered(const ProviderApi& api, abi::SessionOptions* options) {
  weights_of_next_session() = nullptr;
  for (const Offered& one : std::exchange(offered(), {})) {
    weights_of_next_session() = one.weights->shared();
    void* const address = one.weights->file().address(one.part);
    if (address == nullptr) return api.error("the weights " + one.name + " do not lie on the GPU");
    if (abi::Status* bad = one.weights->add(api, options, one.name, address, static_cast<size_t>(one.part.bytes),
                                            one.type, one.dims)) {
      return bad;
    }
  }
  return nullptr;
}

}  // namespace
}  // namespace edge_rt::gpu

EDGE_RT_EXPORT edge_rt::abi::Status* RegisterCustomOps(edge_rt::abi::SessionOptions* options,
                                                       const edge_rt::abi::ApiBase* base) {
  using namespace edge_rt::gpu;  // NOLINT: the function has to be outside
  ProviderApi api;
  if (const char* why = connect(base, &api)) {
    offered().clear();
    return api.ort.table == nullptr ? nullptr : edge_rt::ort::make_status(api.ort, "%s", why);
  }
  return guarded(api, "weights", [&] { return add_offered(api, options); });
}

// Lays tensors of a file of so many bytes into the memory of a GPU, given the offset and the bytes of each. nullptr:
// edge_rt_gpu_weights_error says why.
EDGE_RT_EXPORT void* edge_rt_gpu_weights_open(int number, const char* path, uint64_t bytes, const uint64_t* parts,
                                              size_t count) {
  using namespace edge_rt::gpu;  // NOLINT: the function has to be outside
  GpuError error;
  try {
    drop_lost_gpu(number);
    const std::shared_ptr<WeightsFile> file = WeightsFile::open(number, path, bytes, &error);
    std::vector<FilePart> wanted(count);
    for (size_t i = 0; i < count; ++i) wanted[i] = {parts[2 * i], parts[2 * i + 1]};
    if (file != nullptr && file->place(wanted, &error)) return new ModelWeights(file);
    last_error = error_text("weights", error);
  } catch (const std::bad_alloc&) {
    last_error = "Failed to allocate memory";
  }
  return nullptr;
}

// Of the thread's last call above, valid until the next.
EDGE_RT_EXPORT const char* edge_rt_gpu_weights_error() { return edge_rt::gpu::last_error.c_str(); }

// Names a tensor for the session whose options the thread hands to RegisterCustomOps next; without weights it forgets
// those that were named. 0: the host has no memory.
EDGE_RT_EXPORT int edge_rt_gpu_weights_offer(void* weights, const char* name, uint64_t offset, uint64_t bytes, int type,
                                             const int64_t* dims, size_t rank) {
  using namespace edge_rt::gpu;  // NOLINT: the function has to be outside
  if (weights == nullptr) {
    offered().clear();
    weights_of_next_session() = nullptr;
    return 1;
  }
  try {
    offered().push_back({static_cast<ModelWeights*>(weights), name, {offset, bytes}, type, {dims, dims + rank}});
    return 1;
  } catch (const std::bad_alloc&) {
    offered().clear();
    return 0;
  }
}

// Of all tensors of the file that lie there, for whatever model: the bytes that are read where the file is mapped, or
// those that were copied.
EDGE_RT_EXPORT uint64_t edge_rt_gpu_weights_bytes(void* weights, int is_mapped) {
  return static_cast<edge_rt::gpu::ModelWeights*>(weights)->file().bytes(is_mapped != 0);
}

// When no session has any of them.
EDGE_RT_EXPORT void edge_rt_gpu_weights_close(void* weights) {
  delete static_cast<edge_rt::gpu::ModelWeights*>(weights);
}
