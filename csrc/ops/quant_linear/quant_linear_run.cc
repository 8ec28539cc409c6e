#include "ops/quant_linear/quant_linear_run.h"

#include <algorithm>

#include "common/isa.h"
#include "common/own_memory.h"

namespace edge_rt {
namespace {

// Least work of an item, so that claiming it costs little: bytes of weights, times groups of rows.
constexpr int64_t kItemBytes = 24 << 10;

// Numbers that an item norms, about a microsecond's work.
constexpr int64_t kItemNumbers = 4096;

// Up to so many rows every thread rounds all of them for itself.
constexpr int64_t kMaxOwnRows = 2 * kGroupRows;

int64_t all_code_bytes(const PackedParts& weight, int64_t rows) {
  const int64_t bytes = rows * weight.row_blocks() * kBlock * (weight.rounds() ? 1 : 4);
  return (bytes + 63) / 64 * 64;
}

}  // namespace

FetchAhead fetch_ahead() {
  static const bool is_zen5 = amd_family() >= 0x1a;
  return is_zen5 ? FetchAhead{0, 8 << 10} : FetchAhead{12 << 10, 1536};
}

size_t activation_bytes(const PackedParts& weight, int64_t rows) {
  return static_cast<size_t>(all_code_bytes(weight, rows) +
                             4 * (1 + weight.kinds.words()) * rows * weight.row_blocks());
}

Activations place_activations(const PackedParts& weight, int64_t rows, void* scratch) {
  Activations out{rows, weight.row_blocks(), static_cast<int8_t*>(scratch), nullptr, {}};
  out.scale = reinterpret_cast<float*>(out.codes + all_code_bytes(weight, rows));
  auto* sums = reinterpret_cast<uint32_t*>(out.scale + rows * out.blocks);
  for (int kind = 0; kind < weight.kinds.count; ++kind) {
    out.sums[kind] = sums;
    sums += weight.kinds.kinds[kind].groups * rows * out.blocks;
  }
  return out;
}

namespace {

// A thread's own rounded rows. Shared ones would move between the cores' caches twice, which at 8 rows takes longer
// than to round them again; memory stays small, because only passes of few rows come here.
// False if there is no memory.
bool place_own_rows(const PackedParts& weight, int64_t rows, Activations* out) {
  static thread_local OwnMemory memory;
  unsigned char* at = memory.get(activation_bytes(weight, rows));
  if (at != nullptr) *out = place_activations(weight, rows, at);
  return at != nullptr;
}

}  // namespace

uint8_t* own_tiles(const LinearRows& job) {
  if (!job.weight.rounds() || job.in.groups() < kUnpackGroups) return nullptr;
  return own_memory(unpacked_bytes(job));
}

size_t step_scratch_bytes(const PackedParts& weight, int64_t rows) {
  return rows > kMaxOwnRows ? activation_bytes(weight, rows) : 0;
}

LinearStep::LinearStep(const QuantLinearKernels& kernels, const RoundRows& rounding, const LinearRows& job, int lanes)
    : kernels_(kernels), rounding_(rounding), job_(job), lane_count_(lanes),
      tile_step_(job.paired || job.in.groups() >= kUnpackGroups ? 2 : 1), lanes_(0, 0, 1) {
  job_.fetch = fetch_ahead();
  split();
}

void LinearStep::split() {
  const PackedParts& weight = job_.weight;
  int64_t tile_bytes = 0;
  for (int i = 0; i < weight.count; ++i) {
    const PackedWeight& part = weight.parts[i];
    const int64_t finer = is_nested(part.format) ? part.blocks * finer_bytes(part.format) : 0;
    tile_bytes = std::max(tile_bytes, part.tile_bytes() + finer);
  }
  const int64_t groups = job_.in.groups() >= kUnpackGroups ? job_.in.groups() : 1;
  const int64_t units = (weight.tiles() + tile_step_ - 1) / tile_step_, unit = tile_step_ * tile_bytes * groups;
  lanes_ = TileLanes(units, (kItemBytes + unit - 1) / unit, lane_count_);
}

void LinearStep::feed(LinearStep* next) {
  next_ = &next->rounding_;
  next->is_fed_ = true;
  tile_step_ = kBlock / kTileRows * (job_.paired ? 2 : 1);
  split();
}

void LinearStep::add_phases(PhaseList* phases) {
  if (is_fed_) {
    phases->add(make_phase_of<&LinearStep::multiply>(lanes_.items(), this));
  } else if (job_.in.rows > kMaxOwnRows) {
    phases->add(make_phase_of<&LinearStep::round>(job_.in.groups(), this));
    phases->add(make_phase_of<&LinearStep::multiply>(lanes_.items(), this));
  } else {
    phases->add(make_phase_of<&LinearStep::multiply_own>(lanes_.items(), this));
  }
  if (job_.post_norm != nullptr) {
    const int64_t items = (job_.in.rows + rows_of_norm() - 1) / rows_of_norm();
    phases->add(make_phase_of<&LinearStep::norm_rows>(items, this));
  }
}

int64_t LinearStep::rows_of_norm() const { return std::max<int64_t>(1, kItemNumbers / job_.width); }

void LinearStep::norm_rows(int64_t item, int) {
  const int64_t begin = item * rows_of_norm();
  kernels_.post_norm(job_, begin, std::min(begin + rows_of_norm(), job_.in.rows));
}

void LinearStep::round(int64_t group, int) { kernels_.round_group(rounding_, group, 0, rounding_.blocks()); }

void LinearStep::multiply(int64_t, int worker) { run_tiles(job_, worker); }

void LinearStep::multiply_own(int64_t, int worker) {
  if (!is_rounded_[worker]) {
    if (!place_own_rows(job_.weight, job_.in.rows, &own_[worker])) {
      failed_.store(true, std::memory_order_relaxed);
      return;
    }
    RoundRows mine = rounding_;
    mine.out = own_[worker];
    for (int64_t group = 0; group < job_.in.groups(); ++group) kernels_.round_group(mine, group, 0, mine.blocks());
    is_rounded_[worker] = true;
  }
  LinearRows mine = job_;
  mine.in = own_[worker];
  run_tiles(mine, worker);
}

void LinearStep::run_tiles(LinearRows job, int worker) {
  job.unpacked = own_tiles(job);
  int seen = workers_.load(std::memory_order_relaxed);
  while (worker >= seen && !workers_.compare_exchange_weak(seen, worker + 1, std::memory_order_relaxed)) {
  }
  const TileLanes::Range range = lanes_.claim(counters_, worker);
  const int64_t tiles = job.weight.tiles();
  kernels_.tiles(job, range.begin * tile_step_, std::min(range.end * tile_step_, tiles),
                 std::min(range.lane_end * tile_step_, tiles));
  if (next_ == nullptr) return;
  for (int64_t group = 0; group < next_->out.groups(); ++group) {
    kernels_.round_group(*next_, group, range.begin, range.end);
  }
}

}  // namespace edge_rt
