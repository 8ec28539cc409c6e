#include "gpu/vulkan/vulkan_queue.h"

#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace edge_rt::gpu {
namespace {

constexpr double kFirstBlocks = 64;  // of a kernel that has not run yet

// That fit into a submit; of a kernel that has not run all: nobody knows.
double most_blocks(const Command& command, Nanoseconds limit) {
  if (!command.is_known() || command.pipeline == nullptr) return std::numeric_limits<double>::infinity();
  return static_cast<double>(limit.count()) / command.pipeline->nanoseconds_of_block;
}

}  // namespace

VulkanQueue::VulkanQueue(std::shared_ptr<VulkanDevice> device)
    : device_(std::move(device)), pieces_(device_.get()), buffers_(device_.get()) {}

VulkanQueue::~VulkanQueue() {
  device_->forget(this);
  end_on_device();
}

void VulkanQueue::begin_on_device() {
  if (begun_ == 0) begun_ = device_->begin_pass();
}

void VulkanQueue::end_on_device() {
  if (begun_ != 0) device_->end_pass(std::exchange(begun_, 0));
}

bool VulkanQueue::begin(bool records, GpuError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (!device_->link().is_well(error)) return false;
  pieces_.clear();
  commands_.clear();
  expected_ = Nanoseconds{0};
  failed_ = {};
  begin_on_device();
  owner_ = std::this_thread::get_id();
  if (records) recording_ = std::make_unique<VulkanRecording>(device_);
  return true;
}

bool VulkanQueue::upload(void* to, const void* from, size_t bytes, GpuError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (!device_->link().is_well(error)) return false;
  Command copy;
  copy.bytes = bytes;
  void* address = nullptr;
  void* const piece = pieces_.add(from, bytes, &address, error);
  if (piece == nullptr || !device_->memory().find(address, bytes, &copy.from, error) ||
      !device_->memory().find(to, bytes, &copy.to, error)) {
    return false;
  }
  if (recording_ == nullptr) return start(copy, error);
  recording_->uploads.push_back({piece, from, bytes});
  recording_->commands.push_back(copy);
  return true;
}

bool VulkanQueue::launch(const Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes,
                         GpuError* error) {
  const VulkanFacts& facts = device_->link().facts();
  Command command;
  command.grid_x = static_cast<uint32_t>(grid_x);
  command.grid_y = static_cast<uint32_t>(grid_y);
  const uint32_t cell = cell_of(command.grid_x, command.grid_y, facts);
  const uint64_t most = cell * kCells;
  if (grid_x < 1 || grid_y < 1 || (cell != 0 && (command.grid_x > most || command.grid_y > most))) {
    *error = {Fault::kRefused, 0,
              std::string(kernel.name) + " has a grid of " + std::to_string(grid_x) + " x " + std::to_string(grid_y) +
                  " blocks, the device starts " + std::to_string(facts.grid[0]) + " x " +
                  std::to_string(facts.grid[1]) + " at once"};
    return false;
  }
  command.pipeline = device_->pipelines().find(kernel, cell, error);
  if (command.pipeline == nullptr) return false;
  const std::lock_guard<std::mutex> guard(lock_);
  void* address = nullptr;
  void* const piece = pieces_.add(args, bytes, &address, error);
  if (piece == nullptr) return false;
  command.args = reinterpret_cast<uintptr_t>(address);
  if (recording_ == nullptr) return start(command, error);
  const auto* const first = static_cast<const uint8_t*>(args);
  recording_->arguments.push_back({piece, recording_->given.size(), bytes});
  recording_->given.insert(recording_->given.end(), first, first + bytes);
  recording_->commands.push_back(command);
  return true;
}

bool VulkanQueue::start(const Command& command, GpuError* error) {
  const Nanoseconds limit = device_->limits().submit;
  std::vector<Command> left{command};  // the next one last
  while (!left.empty()) {
    const Command next = left.back();
    left.pop_back();
    const bool is_new = !next.is_known();
    Command first, rest;
    if (divide(next, is_new ? kFirstBlocks : most_blocks(next, limit), &first, &rest)) {
      left.insert(left.end(), {rest, first});
      continue;
    }
    if (!commands_.empty() && (is_new || expected_ + next.expected() > limit) && !flush(error)) return false;
    commands_.push_back(next);
    expected_ += next.expected();
    if (is_new && !flush(error)) return false;
  }
  return true;
}

// Also after an error nothing is left, and the pass has it until its end: it may have been another thread that ran this
// part, or one that frees memory and tells nobody.
bool VulkanQueue::flush(GpuError* error) {
  const std::vector<Command> commands = std::exchange(commands_, {});
  expected_ = Nanoseconds{0};
  Nanoseconds took{0};
  if (!failed_ && !commands.empty() && buffers_.reset(&failed_) &&
      buffers_.add(commands.data(), commands.data() + commands.size(), &failed_) && buffers_.run(&took, &failed_)) {
    learn(commands, took);
  }
  if (!failed_) return device_->link().is_well(error);
  if (!*error) *error = failed_;
  return false;
}

bool VulkanQueue::end(std::unique_ptr<Recording>* out, GpuError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  std::unique_ptr<VulkanRecording> recorded = std::move(recording_);
  bool is_done = true;
  if (recorded == nullptr) {
    is_done = flush(error);
    failed_ = {};
  } else if (out != nullptr) {
    is_done = run(recorded.get(), error);
    if (is_done) *out = std::move(recorded);
  }
  end_on_device();
  if (is_done) device_->pipelines().save();
  return is_done;
}

// Cuts what was recorded into command buffers.
bool VulkanQueue::fill(VulkanRecording* recording, GpuError* error) {
  const Nanoseconds limit = device_->limits().submit;
  std::vector<Command> part;
  Nanoseconds expected{0};
  bool is_new = false;
  const auto cut = [&] {
    const bool is_done = part.empty() || recording->buffers.add(part.data(), part.data() + part.size(), error);
    part.clear();
    expected = Nanoseconds{0};
    return is_done;
  };
  recording->is_cut = false;
  if (!recording->buffers.reset(error)) return false;
  for (const Command& command : recording->commands) {
    // Of a kernel that has never run nothing is known: it has a buffer of its own.
    if ((is_new || !command.is_known()) && !cut()) return false;
    is_new = !command.is_known();
    std::vector<Command> left{command};  // the next one last
    while (!left.empty()) {
      const Command next = left.back();
      left.pop_back();
      Command first, rest;
      if (divide(next, most_blocks(next, limit), &first, &rest)) {
        left.insert(left.end(), {rest, first});
        continue;
      }
      if (expected + next.expected() > limit && !cut()) return false;
      part.push_back(next);
      expected += next.expected();
    }
  }
  recording->is_cut = cut();
  return recording->is_cut;
}

bool VulkanQueue::run(VulkanRecording* recording, GpuError* error) {
  if (!recording->is_cut && !fill(recording, error)) return false;
  Nanoseconds took{0};
  if (!recording->buffers.run(&took, error)) return false;
  // Behind a longer text the same pass takes longer than when it was cut, and one slow measurement cuts too finely: the
  // next time it is cut anew.
  const auto count = static_cast<int64_t>(recording->buffers.count());
  const Nanoseconds limit = device_->limits().submit;
  if (took <= 2 * count * limit && (count <= 1 || 4 * took >= count * limit)) return true;
  learn(recording->commands, took);
  recording->is_cut = false;
  return true;
}

bool VulkanQueue::replay(const Recording& recording, GpuError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (!device_->link().is_well(error)) return false;
  // Nobody else has it meanwhile, and its command buffers may be cut anew.
  auto& recorded = const_cast<VulkanRecording&>(static_cast<const VulkanRecording&>(recording));
  for (const VulkanRecording::Arguments& of : recorded.arguments) {
    std::memcpy(of.piece, recorded.given.data() + of.first, of.bytes);
  }
  for (const VulkanRecording::Upload& upload : recorded.uploads) std::memcpy(upload.piece, upload.from, upload.bytes);
  begin_on_device();
  const bool is_done = run(&recorded, error);
  end_on_device();
  return is_done;
}

bool VulkanQueue::settle(GpuError* error) {
  const std::lock_guard<std::mutex> guard(lock_);
  const bool is_own = owner_ == std::this_thread::get_id();
  GpuError ignored;
  if (recording_ == nullptr) return flush(is_own ? error : &ignored) || !is_own;
  if (!is_own) return true;
  if (!*error) *error = {Fault::kRefused, 0, "a pass with copies between host and device cannot be recorded"};
  return false;
}

}  // namespace edge_rt::gpu
