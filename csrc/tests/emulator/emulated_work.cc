// The emulated driver: work on streams. Nothing runs before somebody waits.
#include <cstring>
#include <utility>

#include "common/float_mode.h"
#include "tests/emulator/emulated_state.h"

namespace edge_rt::gpu::emulated {

CUresult run_until_empty(CUstream stream) {
  State& s = state();
  const DeviceMemory::Open open(&s.memory);
  const CUresult code = s.streams.run_until_empty(stream);
  if (code == kLaunchFailed) s.lost = code;
  return code;
}

namespace {

uint8_t* on_host(CUdeviceptr memory) { return reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(memory)); }

CUresult add(CUstream stream, Item item) {
  State& s = state();
  if (!s.streams.is_live(stream)) return kInvalidHandle;
  s.streams.add(stream, std::move(item));
  return 0;
}

}  // namespace

namespace calls {

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  EDGE_RT_BEGIN(cuMemcpyHtoDAsync);
  if (!s.memory.holds(to, bytes)) return kInvalidValue;
  const bool is_read_later = s.is_pinned(from) || (s.streams.is_live(stream) && stream->capture != nullptr);
  const auto* const begin = static_cast<const uint8_t*>(from);
  const auto staged = is_read_later ? nullptr : std::make_shared<std::vector<uint8_t>>(begin, begin + bytes);
  return add(stream, [=] {
    if (!state().memory.holds(to, bytes)) return kLaunchFailed;
    std::memcpy(on_host(to), staged == nullptr ? begin : staged->data(), bytes);
    return 0;
  });
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  EDGE_RT_BEGIN(cuMemcpyDtoHAsync);
  if (!s.memory.holds(from, bytes)) return kInvalidValue;
  return add(stream, [=] {
    if (!state().memory.holds(from, bytes)) return kLaunchFailed;
    std::memcpy(to, on_host(from), bytes);
    return 0;
  });
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  EDGE_RT_BEGIN(cuMemcpyDtoDAsync);
  if (!s.memory.holds(from, bytes) || !s.memory.holds(to, bytes)) return kInvalidValue;
  return add(stream, [=] {
    if (!state().memory.holds(from, bytes) || !state().memory.holds(to, bytes)) return kLaunchFailed;
    std::memmove(on_host(to), on_host(from), bytes);
    return 0;
  });
}

CUresult cuStreamCreate(CUstream* out, unsigned) {
  EDGE_RT_BEGIN(cuStreamCreate);
  *out = s.streams.make();
  return 0;
}

CUresult cuStreamDestroy(CUstream stream) {
  State& s = state();
  const Guard guard(s.lock);
  if (!s.streams.is_live(stream)) return kInvalidHandle;
  const CUresult code = s.lost != 0 ? s.lost : run_until_empty(stream);
  if (stream->capture != nullptr) --s.graphs;
  s.streams.destroy(stream);
  return code;
}

CUresult cuStreamQuery(CUstream stream) {
  EDGE_RT_BEGIN(cuStreamQuery);
  if (!s.streams.is_live(stream)) return kInvalidHandle;
  if (stream->capture != nullptr) {
    stream->is_capture_broken = true;
    return kCaptureUnsupported;
  }
  return run_until_empty(stream);
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** arguments,
                        void** extra) {
  EDGE_RT_BEGIN(cuLaunchKernel);
  const simt::Kernel* const kernel = function->kernel;
  const bool fits = static_cast<int>(block_x) == kernel->threads && block_y == 1 && block_z == 1 && grid_z == 1 &&
                    grid_x >= 1 && grid_y >= 1 && grid_x <= 0x7fffffffu && grid_y <= 65535;
  if (!fits || shared_bytes != 0 || extra != nullptr || arguments == nullptr) return kInvalidValue;
  const auto* const begin = static_cast<const uint8_t*>(arguments[0]);
  const std::vector<uint8_t> copied(begin, begin + kernel->args_bytes);
  return add(stream, [=] {
    const DefaultFloatMode mode;
    ++state().work.kernels;
    simt::launch(*kernel, static_cast<int>(grid_x), static_cast<int>(grid_y), copied.data(), state().streams.draw());
    return 0;
  });
}

CUresult cuStreamBeginCapture(CUstream stream, int mode) {
  EDGE_RT_BEGIN(cuStreamBeginCapture);
  if (!s.streams.is_live(stream) || stream->capture != nullptr || mode != kCaptureRelaxed) return kInvalidValue;
  stream->capture = std::make_unique<CUgraph_st>();
  stream->is_capture_broken = false;
  ++s.graphs;
  return 0;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* out) {
  EDGE_RT_BEGIN(cuStreamEndCapture);
  *out = nullptr;
  if (!s.streams.is_live(stream) || stream->capture == nullptr) return kInvalidValue;
  std::unique_ptr<CUgraph_st> graph = std::move(stream->capture);
  if (stream->is_capture_broken) {
    --s.graphs;
    return kCaptureInvalidated;
  }
  *out = graph.release();
  return 0;
}

CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, unsigned long long) {
  EDGE_RT_BEGIN(cuGraphInstantiate);
  *out = new CUgraphExec_st{std::make_shared<CUgraph_st>(*graph)};
  ++s.graphs;
  return 0;
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
  EDGE_RT_BEGIN(cuGraphLaunch);
  const std::shared_ptr<const CUgraph_st> items = graph->graph;
  return add(stream, [=] {
    ++state().work.graphs;
    for (const Item& item : items->items) {
      if (const CUresult code = item()) return code;
    }
    return 0;
  });
}

CUresult cuGraphExecDestroy(CUgraphExec graph) {
  State& s = state();
  const Guard guard(s.lock);
  delete graph;
  --s.graphs;
  return s.lost;
}

CUresult cuGraphDestroy(CUgraph graph) {
  State& s = state();
  const Guard guard(s.lock);
  delete graph;
  --s.graphs;
  return s.lost;
}

}  // namespace calls
}  // namespace edge_rt::gpu::emulated
