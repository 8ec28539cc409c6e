#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "common/own_memory.h"
#include "kernels/kernel_table.h"
#include "ops/experts/experts_op.h"
#include "ops/experts/read_experts.h"
#include "ops/quant_linear/quant_linear_run.h"

namespace edge_rt {
namespace {

constexpr int64_t kMaxWidth = int64_t{1} << 24;
constexpr int64_t kItemBytes = 24 << 10;  // of weights that a thread walks over at a time, or a router's numbers
constexpr int64_t kItemRows = 4;          // that are normed, or choose
// From so many rows on, sums of a tile's outputs lie in memory of their own.
constexpr int64_t kManyRows = 32;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t whole_lines(int64_t bytes) { return divide_up(bytes, 64) * 64; }

// Cuts scratch memory into arrays that begin at lines; without memory it counts bytes.
class Cutter {
 public:
  explicit Cutter(void* memory = nullptr) : memory_(static_cast<char*>(memory)) {}

  template <class T>
  T* take(int64_t count) {
    auto* const begin = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += whole_lines(count * static_cast<int64_t>(sizeof(T)));
    return begin;
  }
  size_t bytes() const { return static_cast<size_t>(bytes_); }

 private:
  char* memory_;
  int64_t bytes_ = 0;
};

}  // namespace

abi::Status* Experts::read_routing(ort::Attributes& attributes) {
  const int64_t experts = attributes.integer("experts"), chosen = attributes.integer("chosen");
  if (experts < 1 || experts > kMaxExperts || chosen < 1 || chosen > experts) {
    return attributes.error("experts is %lld and chosen is %lld, must be 1 to %d, and 1 to all of them",
                            static_cast<long long>(experts), static_cast<long long>(chosen), kMaxExperts);
  }
  routing_.experts = static_cast<int>(experts);
  routing_.chosen = static_cast<int>(chosen);
  const std::string gating = attributes.text("gating", "softmax");
  if (gating != "softmax" && gating != "chosen" && gating != "sigmoid") {
    return attributes.error("gating is '%.20s', must be softmax, chosen or sigmoid", gating.c_str());
  }
  routing_.gating = gating == "softmax" ? Gating::kSoftmax : gating == "chosen" ? Gating::kChosen : Gating::kSigmoid;
  const int64_t normalise = attributes.integer("normalise", 0);
  if (normalise != 0 && normalise != 1) {
    return attributes.error("normalise is %lld, must be 0 or 1", static_cast<long long>(normalise));
  }
  routing_.is_normalised = normalise == 1;
  const int64_t groups = attributes.integer("groups", 1), of_groups = attributes.integer("chosen_groups", 1);
  if (groups < 1 || groups > experts || experts % groups != 0 || of_groups < 1 || of_groups > groups ||
      chosen > of_groups * (experts / groups)) {
    return attributes.error(
        "groups is %lld and chosen_groups is %lld, must divide the %lld experts, and the chosen groups hold the %lld "
        "chosen",
        static_cast<long long>(groups), static_cast<long long>(of_groups), static_cast<long long>(experts),
        static_cast<long long>(chosen));
  }
  routing_.groups = static_cast<int>(groups);
  routing_.chosen_groups = static_cast<int>(of_groups);
  routing_.epsilon = attributes.real("weight_epsilon", 0.0f);
  routing_.scale = attributes.real("weight_scale", 1.0f);
  if (!std::isfinite(routing_.epsilon) || routing_.epsilon < 0 || !std::isfinite(routing_.scale)) {
    return attributes.error("weight_epsilon is %g and weight_scale %g, must be finite, and the first not below 0",
                            static_cast<double>(routing_.epsilon), static_cast<double>(routing_.scale));
  }
  return nullptr;
}

abi::Status* Experts::read_activation_of(ort::Attributes& attributes) {
  if (abi::Status* bad = read_activation(attributes, {"swiglu", "geglu", "relu2"}, &steps_.activation)) return bad;
  steps_.limit = attributes.real("limit", 0.0f);
  steps_.slope = attributes.real("slope", 1.0f);
  steps_.up_offset = attributes.real("up_offset", 0.0f);
  if (!std::isfinite(steps_.limit) || steps_.limit < 0 || !std::isfinite(steps_.slope) ||
      !std::isfinite(steps_.up_offset)) {
    return attributes.error("limit is %g, slope %g and up_offset %g, must be finite, and the first not below 0",
                            static_cast<double>(steps_.limit), static_cast<double>(steps_.slope),
                            static_cast<double>(steps_.up_offset));
  }
  if (steps_.has_limits() && steps_.activation != Activation::kSwiglu) {
    return attributes.error("limit, slope and up_offset are given, but activation is not swiglu");
  }
  return nullptr;
}

abi::Status* Experts::create(ort::Attributes& attributes) {
  hidden_ = attributes.integer("hidden");
  intermediate_ = attributes.integer("intermediate");
  const int64_t width = attributes.integer("width", 0);
  has_rows_ = width != 0;
  width_ = has_rows_ ? width : hidden_;
  for (const int64_t size : {hidden_, intermediate_, width_}) {
    if (size < kTileRows || size > kMaxWidth || size % kTileRows != 0) {
      return attributes.error(
          "hidden is %lld, intermediate is %lld and width is %lld, must be multiples of %d up to %lld",
          static_cast<long long>(hidden_), static_cast<long long>(intermediate_), static_cast<long long>(width_),
          kTileRows, static_cast<long long>(kMaxWidth));
    }
  }
  routing_.features = hidden_;
  if (abi::Status* bad = read_routing(attributes)) return bad;
  if (abi::Status* bad = read_activation_of(attributes)) return bad;
  const int64_t rows = routing_.experts * intermediate_;
  const std::vector<int64_t> parts(is_gated(steps_.activation) ? 2 : 1, rows);
  abi::Status* bad = nullptr;
  if ((bad = gate_up_.create(attributes, "gate_up_", parts, width_)) != nullptr ||
      (bad = down_.create(attributes, "down_", {routing_.experts * width_}, intermediate_)) != nullptr ||
      (bad = read_residual_scale(attributes, &steps_.residual_scale)) != nullptr ||
      (bad = read_norm(attributes, &is_layer_norm_)) != nullptr) {
    return bad;
  }
  epsilon_ = attributes.real("epsilon", 0.0f);
  if (!std::isfinite(epsilon_) || epsilon_ < 0) {
    return attributes.error("epsilon is %g, must be finite and not below 0", static_cast<double>(epsilon_));
  }
  linear_ = &kernel_table(attributes.isa()).quant_linear;
  kernels_ = &kernel_table(attributes.isa()).experts;
  return nullptr;
}

abi::Status* Experts::check(ort::OpContext& context, Call* call) const {
  abi::Status* bad = nullptr;
  if ((bad = gate_up_.view(context, kGateUp, &call->gate_up)) != nullptr ||
      (bad = down_.view(context, kDown, &call->down)) != nullptr) {
    return bad;
  }
  for (const PackedParts* all : {&call->gate_up, &call->down}) {
    for (int i = 0; i < all->count; ++i) {
      if (finer_bytes(all->parts[i].format) == 0) continue;
      return context.error("%s has nested codes, which experts cannot have",
                           context.input_name(all == &call->down ? kDown : kGateUp));
    }
  }
  if (steps_.residual_scale != 1.0f && !context.input(kResidual).present) {
    return context.error("residual_scale is %g, but residual is missing", static_cast<double>(steps_.residual_scale));
  }
  if (context.input(kExpertX).present != has_rows_) {
    return context.error("expert_x and attribute width need each other");
  }
  if (context.input(kSharedGate).present && !context.input(kShared).present) {
    return context.error("shared_gate is given without shared");
  }
  if (context.input(kExpertNorm).present && has_rows_) {
    return context.error("expert_norm is given, but experts have rows of their own");
  }
  if (context.input(kSumNorm).present &&
      (!context.input(kShared).present || !context.input(kPostNorm).present || context.input(kSharedGate).present)) {
    return context.error("sum_norm needs shared and post_norm, and no shared_gate");
  }
  const int64_t rows = context.input(kX).rank > 0 ? context.input(kX).dims[0] : 0, experts = routing_.experts;
  if ((bad = context.check_shape(kX, {rows, hidden_})) != nullptr ||
      (bad = context.check_shape(kRouter, {experts, hidden_})) != nullptr ||
      (bad = context.check_shape(kNorm, {hidden_})) != nullptr ||
      (bad = check_norm_bias(context, kNorm, kNormBias, hidden_)) != nullptr ||
      (bad = context.check_shape(kRouterBias, {experts})) != nullptr ||
      (bad = context.check_shape(kChoiceBias, {experts})) != nullptr ||
      (bad = context.check_shape(kGateUpBias, {gate_up_.out_features})) != nullptr ||
      (bad = context.check_shape(kDownBias, {experts * width_})) != nullptr ||
      (bad = context.check_shape(kResidual, {rows, width_})) != nullptr ||
      (bad = context.check_shape(kExpertX, {rows, width_})) != nullptr ||
      (bad = context.check_shape(kShared, {rows, width_})) != nullptr ||
      (bad = context.check_shape(kSharedGate, {hidden_})) != nullptr ||
      (bad = context.check_shape(kExpertScale, {experts})) != nullptr ||
      (bad = context.check_shape(kPostNorm, {width_})) != nullptr ||
      (bad = context.check_shape(kExpertNorm, {hidden_})) != nullptr ||
      (bad = context.check_shape(kSumNorm, {width_})) != nullptr) {
    return bad;
  }
  // What is gathered has numbers of 32 bits.
  if (rows > INT32_MAX / routing_.chosen) {
    return context.error("x has %lld rows, must have up to %d", static_cast<long long>(rows),
                         INT32_MAX / routing_.chosen);
  }
  ort::TensorView y, numbers;
  if ((bad = context.output(0, {rows, width_}, &y)) != nullptr ||
      (bad = context.output(1, {rows, routing_.chosen}, &numbers)) != nullptr) {
    return bad;
  }
  call->numbers = numbers.as<int32_t>();
  const auto* const x = context.input(kX).as<const float>();
  call->routing = routing_;
  call->routing.rows = rows;
  call->routing.x = x;
  call->routing.router = context.input(kRouter).as<const float>();
  call->routing.bias = context.input(kRouterBias).as<const float>();
  call->routing.choice_bias = context.input(kChoiceBias).as<const float>();
  call->routing.expert_scale = context.input(kExpertScale).as<const float>();
  call->routing.shared_gate = context.input(kSharedGate).as<const float>();
  call->x = has_rows_ ? context.input(kExpertX).as<const float>() : x;
  call->norm = {x, hidden_, context.input(kNorm).as<const float>(), epsilon_, false, {}, {}};
  call->norm.norm_bias = context.input(kNormBias).as<const float>();
  call->norm.is_layer_norm = context.input(kNorm).present && (is_layer_norm_ || context.input(kNormBias).present);
  call->expert_norm = {x, hidden_, context.input(kExpertNorm).as<const float>(), epsilon_, false, {}, {}};
  call->expert_norm.is_layer_norm = is_layer_norm_;
  const auto* const residual = context.input(kResidual).as<const float>();
  const auto* const shared = context.input(kShared).as<const float>();
  const bool has_post_norm = context.input(kPostNorm).present, has_sum_norm = context.input(kSumNorm).present;
  call->sum.rows = rows;
  call->sum.width = width_;
  call->sum.shared = has_sum_norm ? nullptr : shared;
  call->sum.residual = has_post_norm ? nullptr : residual;
  call->sum.residual_scale = steps_.residual_scale;
  call->sum.y = y.as<float>();
  call->finish.post_norm = context.input(kPostNorm).as<const float>();
  call->finish.post_width = width_;
  call->finish.post_epsilon = epsilon_;
  call->finish.steps.residual_scale = steps_.residual_scale;
  call->finish.residual = residual;
  call->finish.width = width_;
  call->finish.y = call->sum.y;
  call->finish_sum = call->finish;
  call->finish_sum.post_norm = context.input(kSumNorm).as<const float>();
  if (has_sum_norm) {
    call->finish.residual = shared;
    call->finish.steps.residual_scale = 1.0f;
  }
  return nullptr;
}

void Experts::route(const Call& call, float* normed, float* expert_normed) const {
  const Routing& job = call.routing;
  const auto norm = [&](int64_t item) {
    const int64_t begin = item * kItemRows, end = std::min(begin + kItemRows, job.rows);
    if (normed != nullptr) kernels_->norm(call.norm, begin, end, normed);
    if (expert_normed != nullptr) kernels_->norm(call.expert_norm, begin, end, expert_normed);
  };
  const int64_t step = std::max<int64_t>(1, kItemBytes / (static_cast<int64_t>(sizeof(float)) * hidden_));
  const auto score = [&](int64_t item) {
    kernels_->scores(job, item * step, std::min<int64_t>((item + 1) * step, job.experts));
  };
  const auto choose = [&](int64_t item) {
    kernels_->choose(job, item * kItemRows, std::min((item + 1) * kItemRows, job.rows));
  };
  const int64_t items = divide_up(job.rows, kItemRows);
  run_phases(process_crew(), {make_phase(normed != nullptr || expert_normed != nullptr ? items : 0, norm),
                              make_phase(divide_up(job.experts, step), score), make_phase(items, choose)});
}

PackedParts Experts::of_expert(const PackedParts& all, int64_t index) const {
  PackedParts out = all;
  for (int i = 0; i < out.count; ++i) {
    PackedWeight& part = out.parts[i];
    part.tiles /= routing_.experts;
    part.data += index * part.bytes();
  }
  out.alternate = out.count > 1;
  return out;
}

std::vector<ExpertRows> Experts::gather(ort::OpContext& context, const Call& call, int32_t* numbers,
                                        float* weights) const {
  const Routing& routing = call.routing;
  const int64_t chosen = routing.rows * routing.chosen;
  // Rows by expert, those of each in their order.
  std::vector<int64_t> ends(static_cast<size_t>(routing.experts));
  for (int64_t i = 0; i < chosen; ++i) ++ends[static_cast<size_t>(routing.ids[i])];
  for (size_t e = 1; e < ends.size(); ++e) ends[e] += ends[e - 1];
  for (int64_t i = chosen - 1; i >= 0; --i) {
    const int64_t to = --ends[static_cast<size_t>(routing.ids[i])];
    numbers[to] = static_cast<int32_t>(i / routing.chosen);
    weights[to] = routing.weights[i];
  }
  // Each now is where the rows of its expert begin.
  std::vector<ExpertRows> jobs;
  for (int64_t e = 0; e < routing.experts; ++e) {
    const int64_t begin = ends[static_cast<size_t>(e)];
    const int64_t rows = (e + 1 < routing.experts ? ends[static_cast<size_t>(e) + 1] : chosen) - begin;
    if (rows == 0) continue;
    ExpertRows& job = jobs.emplace_back();
    for (LinearRows* linear : {&job.gate_up, &job.down}) {
      linear->weight = of_expert(linear == &job.down ? call.down : call.gate_up, e);
      linear->in.rows = rows;
      linear->fetch = fetch_ahead();
    }
    job.gate_up.paired = is_gated(steps_.activation);
    job.gate_up.steps = steps_;
    job.gate_up.steps.residual_scale = 1.0f;
    job.gate_up.out_features = gate_up_.out_features / routing.experts;
    job.gate_up.width = intermediate_;
    job.down.out_features = job.down.width = width_;
    const auto* const bias = context.input(kGateUpBias).as<const float>();
    const auto* const down_bias = context.input(kDownBias).as<const float>();
    job.gate_up.bias = bias == nullptr ? nullptr : bias + e * job.gate_up.out_features;
    job.down.bias = down_bias == nullptr ? nullptr : down_bias + e * width_;
    job.rounding.numbers = numbers + begin;
    job.weights = weights + begin;
  }
  return jobs;
}

abi::Status* Experts::multiply(ort::OpContext& context, const Call& call) const {
  const int64_t chosen = call.routing.rows * call.routing.chosen;
  std::vector<int32_t> numbers(static_cast<size_t>(chosen));
  std::vector<float> weights(static_cast<size_t>(chosen));
  std::vector<ExpertRows> jobs = gather(context, call, numbers.data(), weights.data());
  const auto count = static_cast<int64_t>(jobs.size());
  std::shared_ptr<ExpertCache> cache = expert_cache_of(jobs[0].gate_up.weight.parts[0].data);
  if (cache == nullptr) return add_lot(context, call, jobs.data(), 0, count, count, nullptr);
  ReadExperts reads(std::move(cache), jobs);
  const int64_t room = reads.room();
  if (room == 0) {
    return context.error("the cache of experts has no slots of %lld bytes", static_cast<long long>(reads.slot_bytes()));
  }
  // While one lot is computed, the next one is read.
  const int64_t lot = count <= room ? count : std::max<int64_t>(1, room / 2);
  const bool reads_ahead = 2 * lot <= room;
  reads.hold(0, lot);
  for (int64_t begin = 0; begin < count; begin += lot) {
    const int64_t end = std::min(begin + lot, count), next = std::min(end + lot, count);
    if (reads_ahead) reads.hold(end, next);
    if (abi::Status* bad = add_lot(context, call, jobs.data(), begin, end, count, &reads)) return bad;
    reads.release(begin, end);
    if (!reads_ahead) reads.hold(end, next);
  }
  return nullptr;
}

abi::Status* Experts::add_lot(ort::OpContext& context, const Call& call, ExpertRows* jobs, int64_t begin, int64_t end,
                              int64_t all, ReadExperts* reads) const {
  const Routing& routing = call.routing;
  size_t bytes = 0;
  int64_t chosen = 0;
  for (int64_t e = begin; e < end; ++e) {
    const int64_t rows = jobs[e].gate_up.in.rows;
    for (const LinearRows* linear : {&jobs[e].gate_up, &jobs[e].down}) {
      bytes += static_cast<size_t>(whole_lines(static_cast<int64_t>(activation_bytes(linear->weight, rows))));
    }
    chosen += rows;
  }
  ort::Scratch scratch;
  bytes += static_cast<size_t>(whole_lines(chosen * intermediate_ * static_cast<int64_t>(sizeof(float))));
  if (abi::Status* bad = context.scratch(bytes, &scratch)) return bad;
  Cutter cutter(scratch.data());
  std::vector<Piece> groups, between_groups, tiles;
  auto* made = cutter.take<float>(chosen * intermediate_);
  for (int64_t e = begin; e < end; ++e) {
    ExpertRows& job = jobs[e];
    const int64_t rows = job.gate_up.in.rows;
    // A single row is the same for all of its experts.
    const bool is_same = routing.rows == 1 && e > begin;
    if (is_same) job.gate_up.in = jobs[begin].gate_up.in;
    for (LinearRows* linear : {&job.gate_up, &job.down}) {
      if (is_same && linear == &job.gate_up) continue;
      auto* const memory = cutter.take<char>(static_cast<int64_t>(activation_bytes(linear->weight, rows)));
      linear->in = place_activations(linear->weight, rows, memory);
    }
    const LinearRows &up = job.gate_up, &down = job.down;
    static_cast<RoundRows&>(job.rounding) = {call.x, width_, nullptr, 0.0f, up.weight.rounds(), up.weight.kinds, up.in};
    job.between = {made, intermediate_, nullptr, 0.0f, down.weight.rounds(), down.weight.kinds, down.in};
    job.gate_up.y = made;
    made += rows * intermediate_;
    for (int64_t group = 0; !is_same && group < up.in.groups(); ++group) groups.push_back({e, group, group + 1});
  }
  const auto cut = [&](int64_t e) {
    const LinearRows& up = jobs[e].gate_up;
    for (int64_t group = 0; group < up.in.groups(); ++group) between_groups.push_back({e, group, group + 1});
    const int64_t pair = up.paired ? 2 : 1, of_expert = up.weight.tiles();
    const int64_t tile = pair * up.weight.parts[0].tile_bytes() * up.in.groups();
    const int64_t step = pair * divide_up(kItemBytes, tile);
    for (int64_t at = 0; at < of_expert; at += step) tiles.push_back({e, at, std::min(at + step, of_expert)});
  };
  ExpertSum sum = call.sum;
  sum.experts = jobs + begin;
  sum.count = end - begin;
  sum.is_first = begin == 0;
  sum.is_last = end == all;
  sum.shares = routing.shared_gate != nullptr ? routing.shares : nullptr;
  // What is there is computed while the rest is read; only the sum has an order.
  const bool are_all_there = reads == nullptr || reads->are_there(begin, end);
  for (const bool is_there : {true, false}) {
    for (int64_t e = begin; e < end; ++e) {
      if (reads != nullptr && reads->is_there(e) != is_there) continue;
      if (reads != nullptr && !reads->place(e)) return context.error("%s", reads->problem().c_str());
      cut(e);
    }
    const bool is_last = are_all_there || !is_there;
    if (is_last || !tiles.empty()) {
      compute_lot(call, jobs, groups, tiles, between_groups, is_last ? &sum : nullptr);
      groups.clear();
    }
    if (is_last) break;
    tiles.clear();
    between_groups.clear();
  }
  return nullptr;
}

void Experts::compute_lot(const Call& call, const ExpertRows* jobs, const std::vector<Piece>& groups,
                          const std::vector<Piece>& tiles, const std::vector<Piece>& between_groups,
                          const ExpertSum* sum) const {
  const Routing& routing = call.routing;
  const auto round = [&](int64_t item) {
    const Piece& piece = groups[static_cast<size_t>(item)];
    kernels_->round_group(jobs[piece.expert].rounding, piece.begin);
  };
  // Both walks are in lanes, so that what a thread fetches ahead is what it reads itself.
  std::atomic<int> workers{1};
  LaneCounters up_counters, down_counters;
  const int lanes = lanes_.load(std::memory_order_relaxed);
  const TileLanes up_lanes(static_cast<int64_t>(tiles.size()), 1, lanes);
  const auto first = [&](int64_t, int worker) {
    int seen = workers.load(std::memory_order_relaxed);
    while (worker >= seen && !workers.compare_exchange_weak(seen, worker + 1, std::memory_order_relaxed)) {
    }
    const TileLanes::Range range = up_lanes.claim(up_counters, worker);
    for (int64_t i = range.begin; i < range.end;) {
      const int64_t expert = tiles[static_cast<size_t>(i)].expert, begin = tiles[static_cast<size_t>(i)].begin;
      int64_t end = begin, fetch_end = begin;
      for (; i < range.end && tiles[static_cast<size_t>(i)].expert == expert; ++i)
        end = tiles[static_cast<size_t>(i)].end;
      for (int64_t next = i - 1; next < range.lane_end && tiles[static_cast<size_t>(next)].expert == expert; ++next) {
        fetch_end = tiles[static_cast<size_t>(next)].end;
      }
      LinearRows job = jobs[expert].gate_up;
      job.unpacked = own_tiles(job);
      linear_->tiles(job, begin, end, fetch_end);
    }
  };
  const auto between = [&](int64_t item) {
    const Piece& piece = between_groups[static_cast<size_t>(item)];
    const RoundRows& job = jobs[piece.expert].between;
    linear_->round_group(job, piece.begin, 0, job.blocks());
  };
  const TileLanes down_lanes(width_ / kTileRows, 1, lanes);
  const auto add = [&](int64_t, int worker) {
    const TileLanes::Range range = down_lanes.claim(down_counters, worker);
    const LinearRows& any = sum->experts[0].down;
    uint8_t* memory = nullptr;
    if (routing.rows >= kManyRows) {
      memory =
          own_memory(static_cast<size_t>(sum_bytes(routing.rows)) + (any.weight.rounds() ? unpacked_bytes(any) : 0));
    }
    kernels_->add(*sum, range.begin, range.end, range.lane_end, memory);
  };
  const auto finish = [&](int64_t item) {
    const int64_t begin = item * kItemRows, end = std::min(begin + kItemRows, routing.rows);
    linear_->post_norm(call.finish, begin, end);
    if (call.finish_sum.post_norm != nullptr) linear_->post_norm(call.finish_sum, begin, end);
  };
  run_phases(
      process_crew(),
      {make_phase(static_cast<int64_t>(groups.size()), round), make_phase(up_lanes.items(), first),
       make_phase(static_cast<int64_t>(between_groups.size()), between),
       make_phase(sum != nullptr ? down_lanes.items() : 0, add),
       make_phase(
           sum != nullptr && sum->is_last && call.finish.post_norm != nullptr ? divide_up(routing.rows, kItemRows) : 0,
           finish)});
  lanes_.store(workers.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

abi::Status* Experts::compute(ort::OpContext& context) const {
  Call call{};
  if (abi::Status* bad = check(context, &call)) return bad;
  Routing& routing = call.routing;
  if (routing.rows == 0) return nullptr;
  const bool has_norm = call.norm.norm_weight != nullptr;
  const bool has_expert_norm = call.expert_norm.norm_weight != nullptr;
  float *normed = nullptr, *expert_normed = nullptr;
  const auto place = [&](Cutter& cutter) {
    normed = has_norm ? cutter.take<float>(routing.rows * hidden_) : nullptr;
    expert_normed = has_expert_norm ? cutter.take<float>(routing.rows * hidden_) : nullptr;
    routing.scores = cutter.take<float>(routing.rows * routing.stride());
    routing.ids = cutter.take<int32_t>(routing.rows * routing.chosen);
    routing.weights = cutter.take<float>(routing.rows * routing.chosen);
    routing.shares = cutter.take<float>(routing.rows);
  };
  Cutter counter;
  place(counter);
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(counter.bytes(), &scratch)) return bad;
  Cutter cutter(scratch.data());
  place(cutter);
  if (has_norm) {
    routing.x = normed;
    if (!has_rows_) call.x = normed;
  }
  if (has_expert_norm) call.x = expert_normed;
  route(call, normed, expert_normed);
  if (call.numbers != nullptr) std::copy_n(routing.ids, routing.rows * routing.chosen, call.numbers);
  return multiply(context, call);
}

}  // namespace edge_rt
