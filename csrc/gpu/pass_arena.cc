#include "gpu/pass_arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "gpu/held_objects.h"

namespace edge_rt::gpu {
namespace {

constexpr size_t kAligned = 256, kSmallest = 64 << 10;

size_t rounded(size_t bytes, size_t to) { return (std::max<size_t>(bytes, 1) + to - 1) / to * to; }

}  // namespace

std::shared_ptr<PassArena> PassArena::of(int number, const std::shared_ptr<GpuDevice>& device, size_t planned) {
  static auto* const arenas = new HeldObjects<int, PassArena>;
  return arenas->get(
      number, [&](const PassArena& found) { return found.device_ == device; },
      [&] { return std::make_shared<PassArena>(device, planned); });
}

PassArena::~PassArena() {
  for (const Block& block : blocks_) device_->free(block.begin);
}

PassArena::Block* PassArena::add_block(size_t bytes) {
  GpuError error;
  void* const memory = device_->allocate(bytes, &error);
  if (memory == nullptr) return nullptr;
  blocks_.push_back({static_cast<char*>(memory), bytes, {{0, bytes}}});
  return &blocks_.back();
}

void* PassArena::take(Block* block, std::map<size_t, size_t>::iterator range, size_t bytes) {
  const auto [at, idle] = *range;
  block->idle.erase(range);
  if (idle > bytes) block->idle[at + bytes] = idle - bytes;
  void* const memory = block->begin + at;
  used_[memory] = {block, bytes};
  return memory;
}

void* PassArena::allocate(size_t bytes) {
  const std::lock_guard<std::mutex> guard(lock_);
  const size_t wanted = rounded(bytes, kAligned);
  Block* best = nullptr;
  std::map<size_t, size_t>::iterator place;
  for (Block& block : blocks_) {
    for (auto range = block.idle.begin(); range != block.idle.end(); ++range) {
      if (range->second < wanted || (best != nullptr && place->second <= range->second)) continue;
      best = &block;
      place = range;
    }
  }
  if (best == nullptr) {
    const size_t least = rounded(wanted, kSmallest), planned = rounded(next_, kAligned);
    // A small model is planned with less than the smallest.
    const size_t made = blocks_.empty() && next_ != 0 && planned >= wanted ? planned : least;
    best = add_block(made);
    if (best == nullptr && made > least) {
      // What other programs have left may lie in parts, and a device may give less at once.
      refused_ = std::min(refused_, made);
      best = add_block(least);
    }
    if (best == nullptr) return nullptr;
    place = best->idle.begin();
  }
  return take(best, place, wanted);
}

bool PassArena::free(void* memory) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = used_.find(memory);
  if (found == used_.end()) return false;
  const Piece piece = found->second;
  used_.erase(found);
  std::map<size_t, size_t>& idle = piece.block->idle;
  auto range = idle.emplace(static_cast<size_t>(static_cast<char*>(memory) - piece.block->begin), piece.bytes).first;
  if (const auto behind = std::next(range); behind != idle.end() && range->first + range->second == behind->first) {
    range->second += behind->second;
    idle.erase(behind);
  }
  if (range == idle.begin()) return true;
  if (const auto before = std::prev(range); before->first + before->second == range->first) {
    before->second += range->second;
    idle.erase(range);
  }
  return true;
}

void PassArena::join() {
  const std::lock_guard<std::mutex> guard(lock_);
  if (blocks_.size() < 2 || !used_.empty()) return;
  size_t all = 0;
  for (const Block& block : blocks_) all += block.bytes;
  if (all >= refused_) return;
  for (const Block& block : blocks_) device_->free(block.begin);
  blocks_.clear();
  next_ = all;
  ++generation_;
}

int PassArena::generation() const {
  const std::lock_guard<std::mutex> guard(lock_);
  return generation_;
}

size_t PassArena::bytes() const {
  const std::lock_guard<std::mutex> guard(lock_);
  size_t all = 0;
  for (const Block& block : blocks_) all += block.bytes;
  return all;
}

}  // namespace edge_rt::gpu
