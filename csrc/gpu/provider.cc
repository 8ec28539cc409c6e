// The symbols of the library: ONNX Runtime calls the first two, edge-rt's Python the others.
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "common/export.h"
#include "gpu/gpu_device.h"
#include "gpu/kept_gpus.h"
#include "gpu/provider_factory.h"

// The header that defines edge_rt::gpu::GpuOps; the library of tests has one of its own.
#ifndef EDGE_RT_GPU_OPS_HEADER
#define EDGE_RT_GPU_OPS_HEADER "gpu/gpu_ops.h"
#endif
#include EDGE_RT_GPU_OPS_HEADER

namespace edge_rt::gpu {
namespace {

// Number of the calls below: the Python half refuses a library of another one.
constexpr int kAbiVersion = 5;

abi::Status* create_factory(const abi::ApiBase* base, abi::EpFactory** out) {
  ProviderApi api;
  if (const char* why = connect(base, &api)) {
    // Errors are as old as the interface: slot 0 of any table can carry the sentence.
    if (api.ort.table == nullptr && base != nullptr && base->table != nullptr) api.ort.table = base->table(1);
    return api.ort.table == nullptr ? nullptr : ort::make_status(api.ort, "%s", why);
  }
  return guarded(api, "the provider", [&]() -> abi::Status* {
    auto factory = std::make_unique<ProviderFactory>(api);
    if (abi::Status* bad = factory->create(GpuOps{})) return bad;
    *out = factory.release();
    return nullptr;
  });
}

// A line of fields, in whose texts tabs and ends of lines become blanks.
class Line {
 public:
  Line& operator<<(std::string text) {
    for (char& letter : text) letter = letter == '\t' || letter == '\n' ? ' ' : letter;
    text_ += (text_.empty() ? "" : "\t") + text;
    return *this;
  }
  std::string text() const { return text_ + "\n"; }

 private:
  std::string text_;
};

std::string told(const GpuError& error) {
  return (Line() << "error" << std::to_string(error.code) << error.sentence).text();
}

std::string describe() {
  std::vector<GpuFacts> gpus;
  GpuError error;
  if (!list_gpus(&gpus, &error)) return told(error);
  std::string lines = (Line() << "driver" << driver_version()).text();
  for (size_t number = 0; number < gpus.size(); ++number) {
    const GpuFacts& facts = gpus[number];
    Line line;
    line << "gpu" << std::to_string(number) << std::to_string(facts.bytes) << (facts.is_unified ? "1" : "0")
         << facts.name;
    for (const auto& [key, value] : facts.more) line << key + "=" + value;
    if (!facts.refusal.empty()) line << "refusal=" + facts.refusal;
    lines += line.text();
  }
  return lines;
}

std::string tell_self_test(int number) {
  SelfTest found;
  GpuError error;
  if (!test_gpu(number, &found, &error)) return told(error);
  std::string lines = (Line() << "bits" << (found.has_cpu_bits ? "cpu" : "device")).text();
  for (const auto& [name, what] : found.operations) lines += (Line() << "operation" << name << what).text();
  return lines;
}

std::string copy(int number, size_t count, const uint64_t* to, const uint64_t* from, const uint64_t* bytes) {
  const auto at = [](uint64_t address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); };
  std::vector<Piece> pieces;
  pieces.reserve(count);
  for (size_t i = 0; i < count; ++i) pieces.push_back({at(to[i]), at(from[i]), static_cast<size_t>(bytes[i])});
  GpuError error;
  const auto gpu = open_gpu(number, &error);
  if (gpu != nullptr && gpu->copy_pieces(pieces, &error)) return {};
  return error_text("a copy of " + std::to_string(count) + " pieces", error);
}

// Lines that stay until the thread's next call; an error if the host has no memory for them.
template <class Body>
const char* told(Body body) {
  static thread_local std::string lines;
  try {
    lines = body();
  } catch (const std::bad_alloc&) {
    return "error\t0\tFailed to allocate memory\n";
  }
  return lines.c_str();
}

}  // namespace
}  // namespace edge_rt::gpu

EDGE_RT_EXPORT edge_rt::abi::Status* CreateEpFactories(const char*, const edge_rt::abi::ApiBase* base, const void*,
                                                       edge_rt::abi::EpFactory** out, size_t most, size_t* count) {
  *count = 0;
  if (most == 0) return nullptr;
  edge_rt::abi::Status* const bad = edge_rt::gpu::create_factory(base, &out[0]);
  if (bad == nullptr) *count = 1;
  return bad;
}

EDGE_RT_EXPORT edge_rt::abi::Status* ReleaseEpFactory(edge_rt::abi::EpFactory* factory) {
  delete static_cast<edge_rt::gpu::ProviderFactory*>(factory);
  return nullptr;
}

EDGE_RT_EXPORT int edge_rt_gpu_abi_version() { return edge_rt::gpu::kAbiVersion; }

// What GPUs there are, in lines of fields with tabs between them: "driver" and its version, such as 13000; then for
// each GPU "gpu", its number, its bytes, 1 if it shares the machine's memory, its name, what else is known of it as
// "key=value" (GpuFacts::more), and "refusal=" why kernels cannot run there, if so. Or one line: "error", the driver's
// code or 0, and a sentence. Valid until the thread's next call.
EDGE_RT_EXPORT const char* edge_rt_gpu_describe() {
  return edge_rt::gpu::told([] { return edge_rt::gpu::describe(); });
}

// How the arithmetic of a GPU compares to the CPU's, which opens it: "bits" and "cpu", or "device" where rows are exact
// among themselves only; then lines of "operation", its name and what was found ("as it is", "mended", "differs"). Or
// "error" as above. Valid until the thread's next call.
EDGE_RT_EXPORT const char* edge_rt_gpu_self_test(int number) {
  return edge_rt::gpu::told([number] { return edge_rt::gpu::tell_self_test(number); });
}

// Hands over kernels for the GPU of that number, compiled out of a source file of that name: a GPU that is opened from
// now on has them.
EDGE_RT_EXPORT void edge_rt_gpu_set_kernels(int number, const char* source, const void* image, size_t bytes) {
  edge_rt::gpu::set_kernels(number, source, image, bytes);
}

// Names a file for what the driver of the GPU of that number makes of its kernels, in a folder that is there: a GPU
// that is opened from now on reads it, and writes it when there is more.
EDGE_RT_EXPORT void edge_rt_gpu_keep_compiled(int number, const char* file) {
  edge_rt::gpu::keep_compiled(number, file);
}

// Copies pieces of a GPU's memory to other places of it, given their addresses; none is written that another one is of,
// or is written to. Returns an empty text when that is done, or an error as those of passes. Valid until the thread's
// next call.
EDGE_RT_EXPORT const char* edge_rt_gpu_copy(int number, size_t count, const uint64_t* to, const uint64_t* from,
                                            const uint64_t* bytes) {
  return edge_rt::gpu::told([=] { return edge_rt::gpu::copy(number, count, to, from, bytes); });
}

// Bytes that are free on a GPU, and all it has. Returns 0, or the driver's code, or -1 where there is no driver.
EDGE_RT_EXPORT int edge_rt_gpu_memory(int number, size_t* free, size_t* total) {
  try {
    edge_rt::gpu::GpuError error;
    edge_rt::gpu::MemoryBudget budget;
    edge_rt::gpu::drop_lost_gpu(number);
    const auto gpu = edge_rt::gpu::open_gpu(number, &error);
    if (gpu == nullptr || !gpu->budget(&budget, &error)) return error.code != 0 ? error.code : -1;
    *free = budget.free;
    *total = budget.total;
    return 0;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
