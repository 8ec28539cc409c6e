#include "gpu/pass_stream.h"

#include <utility>

namespace edge_rt::gpu {

std::unique_ptr<PassStream> PassStream::open(std::shared_ptr<GpuDevice> device, std::shared_ptr<PassArena> arena,
                                             GpuError* error) {
  if (arena == nullptr) arena = std::make_shared<PassArena>(device, 0);
  std::unique_ptr<PassStream> made(new PassStream(std::move(device), std::move(arena)));
  made->queue_ = made->device_->open_queue(error);
  if (made->queue_ == nullptr) return nullptr;
  return made;
}

PassStream::~PassStream() {
  GpuError ignored;
  if (is_running_) end_pass(true, &ignored);
}

bool PassStream::begin_pass(int graph, GpuError* error) {
  GpuError ignored;
  if (is_running_) end_pass(true, &ignored);  // a pass that nobody has ended
  inputs_.clear();
  error_ = {};
  number_ = graph;
  is_recording_ = graph != kNoGraph && !has_graph(graph) && has_run_.count(graph) != 0;
  is_running_ = queue_->begin(is_recording_, error);
  if (is_running_) memory_.begin_pass();
  return is_running_;
}

bool PassStream::end_pass(bool has_failed, GpuError* error) {
  std::unique_ptr<Recording> recording;
  const bool is_done = queue_->end(is_recording_ && !has_failed ? &recording : nullptr, error);
  if (is_done && !has_failed && number_ != kNoGraph) {
    if (is_recording_) {
      recorded_[number_] = {std::move(recording), std::exchange(checks_, {}), memory_.generation()};
    } else {
      has_run_.insert(number_);
    }
  }
  is_running_ = is_recording_ = false;
  inputs_.clear();
  memory_.end_pass();
  checks_.clear();
  number_ = kNoGraph;
  return is_done;
}

bool PassStream::has_graph(int graph) const {
  const auto found = recorded_.find(graph);
  return found != recorded_.end() && found->second.generation == memory_.generation();
}

bool PassStream::launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes) {
  return !error_ && queue_->launch(kernel, grid_x, grid_y, args, bytes, &error_);
}

bool PassStream::upload(void* to, const void* from, size_t bytes) {
  return !error_ && (bytes == 0 || queue_->upload(to, from, bytes, &error_));
}

void PassStream::check_replays(const char* op, Check check) {
  if (is_recording_) checks_.push_back({op, std::move(check)});
}

void PassStream::keep_error(GpuError error) {
  if (!error_) error_ = std::move(error);
}

GpuError PassStream::take_error() { return std::exchange(error_, {}); }

bool PassStream::replay(int number, GpuError* error) {
  const auto found = recorded_.find(number);
  if (!has_graph(number)) {
    *error = {Fault::kRefused, 0, "no pass was recorded under number " + std::to_string(number)};
    return false;
  }
  for (const CheckOf& of : found->second.checks) {
    if (const std::string problem = of.check(); !problem.empty()) {
      *error = {Fault::kRefused, 0, std::string(of.op) + ": " + problem};
      return false;
    }
  }
  return queue_->replay(*found->second.recording, error);
}

void PassStream::forget_graph(int number) {
  if (recorded_.erase(number) > 0) has_run_.erase(number);
}

}  // namespace edge_rt::gpu
