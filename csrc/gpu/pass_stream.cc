#include "gpu/pass_stream.h"

#include <cstdint>
#include <cstring>
#include <utility>

namespace edge_rt::gpu {

std::unique_ptr<PassStream> PassStream::open(std::shared_ptr<GpuContext> context, DriverError* error) {
  std::unique_ptr<PassStream> made(new PassStream(std::move(context)));
  made->stream_ = made->context_->make_stream(error);
  if (made->stream_ == nullptr) return nullptr;
  return made;
}

PassStream::~PassStream() {
  DriverError ignored;
  if (is_capturing_) end_pass(true, &ignored);
  context_->enter(&ignored);
  if (stream_ != nullptr) context_->destroy_stream(stream_);
  for (auto& [number, graph] : graphs_) drop(&graph);
  drop(&pass_);
}

void PassStream::drop_uploads(std::vector<Upload>* uploads) {
  for (const Upload& upload : *uploads) context_->driver().cuMemFreeHost(upload.pinned);
  uploads->clear();
}

void PassStream::drop(Graph* graph) {
  if (graph->ready != nullptr) context_->driver().cuGraphExecDestroy(graph->ready);
  drop_uploads(&graph->uploads);
  *graph = {};
}

bool PassStream::begin_pass(int graph, DriverError* error) {
  DriverError ignored;
  if (is_capturing_) end_pass(true, &ignored);  // a pass that nobody has ended
  inputs_.clear();
  error_ = {};
  number_ = graph;
  const bool is_recorded = graph != kNoGraph && !has_graph(graph);
  const bool is_first = is_recorded && has_run_.count(graph) == 0;
  using Use = MemoryPool::Use;
  memory_.begin(!is_recorded ? Use::kOnce : is_first ? Use::kKept : Use::kRecorded);
  if (!is_recorded || is_first) return context_->enter(error);
  is_capturing_ = context_->begin_capture(stream_, error);
  return is_capturing_;
}

bool PassStream::end_pass(bool has_failed, DriverError* error) {
  bool is_done = true;
  if (is_capturing_) {
    is_capturing_ = false;
    CUgraph captured = nullptr;
    is_done = context_->end_capture(stream_, &captured, error);
    if (is_done && !has_failed) is_done = record(captured, error);
    if (captured != nullptr) context_->driver().cuGraphDestroy(captured);
  } else if (!has_failed && number_ != kNoGraph) {
    has_run_[number_] = true;
  }
  if (context_->enter(error)) {
    is_done = EDGE_RT_DRIVER_CALL(context_->driver(), cuStreamSynchronize, error, stream_) && is_done;
  } else {
    is_done = false;
  }
  inputs_.clear();
  memory_.begin(MemoryPool::Use::kOnce);
  drop(&pass_);
  number_ = kNoGraph;
  return is_done;
}

// What was captured has not run yet.
bool PassStream::record(CUgraph captured, DriverError* error) {
  const Driver& driver = context_->driver();
  if (!EDGE_RT_DRIVER_CALL(driver, cuGraphInstantiate, error, &pass_.ready, captured, 0)) return false;
  if (!EDGE_RT_DRIVER_CALL(driver, cuGraphLaunch, error, pass_.ready, stream_)) return false;
  graphs_[number_] = std::exchange(pass_, {});
  return true;
}

bool PassStream::launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t) {
  GpuFunction found;
  if (error_ || !context_->find(kernel.name, &found, &error_)) return false;
  void* arguments[] = {const_cast<void*>(args)};
  return EDGE_RT_DRIVER_CALL(context_->driver(), cuLaunchKernel, &error_, found.function, static_cast<unsigned>(grid_x),
                             static_cast<unsigned>(grid_y), 1, static_cast<unsigned>(found.threads), 1, 1, 0, stream_,
                             arguments, nullptr);
}

bool PassStream::upload(void* to, const void* from, size_t bytes) {
  if (error_) return false;
  if (bytes == 0) return true;
  const Driver& driver = context_->driver();
  const void* source = from;
  if (is_capturing_) {
    Upload upload{nullptr, from, bytes};
    if (!EDGE_RT_DRIVER_CALL(driver, cuMemHostAlloc, &error_, &upload.pinned, bytes, 0)) return false;
    pass_.uploads.push_back(upload);
    std::memcpy(upload.pinned, from, bytes);
    source = upload.pinned;
  }
  const auto target = static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(to));
  return EDGE_RT_DRIVER_CALL(driver, cuMemcpyHtoDAsync, &error_, target, source, bytes, stream_);
}

void PassStream::check_replays(Check check) {
  if (is_capturing_) pass_.checks.push_back(std::move(check));
}

void PassStream::keep_error(DriverError error) {
  if (!error_) error_ = std::move(error);
}

DriverError PassStream::take_error() { return std::exchange(error_, {}); }

bool PassStream::replay(int number, DriverError* error) {
  const auto found = graphs_.find(number);
  if (found == graphs_.end()) {
    *error = {"cuGraphLaunch", 0, "no pass was recorded under number " + std::to_string(number)};
    return false;
  }
  const Graph& graph = found->second;
  for (const Check& check : graph.checks) {
    if (!check(error)) return false;
  }
  for (const Upload& upload : graph.uploads) std::memcpy(upload.pinned, upload.from, upload.bytes);
  if (!context_->enter(error) || !EDGE_RT_DRIVER_CALL(context_->driver(), cuGraphLaunch, error, graph.ready, stream_)) {
    return false;
  }
  return EDGE_RT_DRIVER_CALL(context_->driver(), cuStreamSynchronize, error, stream_);
}

void PassStream::forget_graph(int number) {
  const auto found = graphs_.find(number);
  if (found == graphs_.end()) return;
  DriverError ignored;
  context_->enter(&ignored);
  drop(&found->second);
  graphs_.erase(found);
  has_run_.erase(number);
}

}  // namespace edge_rt::gpu
