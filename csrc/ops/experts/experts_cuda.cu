// Experts on a GPU: see experts.h for what is computed, and experts_gpu.h for how it is spread.
#include <type_traits>

#include "gpu/cuda/block_rows.h"
#include "ops/experts/experts_gpu.h"

namespace edge_rt::gpu {
namespace {

#include "ops/quant_linear/quant_linear_codes.inl"
#include "ops/quant_linear/quant_linear_finish.inl"
#include "ops/quant_linear/quant_linear_round_cuda.inl"
#include "ops/quant_linear/quant_linear_block_cuda.inl"
#include "ops/quant_linear/quant_linear_tiles_cuda.inl"
#include "ops/quant_linear/quant_linear_floats_cuda.inl"

constexpr int64_t kRoundBlocks = 16;  // of a block of threads, as in experts_gpu.cc

using Few8 = FewRows<8, 4, 16>;

template <class Source>
EDGE_RT_DEVICE void norm_row(const RoundRows& job, float* to) {
  const int64_t row = block_x();
  const Source source(job, row);
  for (int64_t i = thread() / 16 * 16; i < job.features; i += kRouteThreads) {
    const int count = job.features - i < 16 ? static_cast<int>(job.features - i) : 16;
    vf_store_n(to + row * job.features + i, source.load_n(i, count), count);
  }
}

// What follows is written in device memory, where numbers of parts may be looked up by their index.

// Activations of rows among those of all.
EDGE_RT_DEVICE void put_rows(const Activations& all, const PackedParts& weight, int64_t begin, int64_t rows,
                             Activations* own) {
  const int64_t first = begin * all.blocks;
  own->rows = rows;
  own->blocks = all.blocks;
  own->codes = all.codes + first * kBlock * (weight.rounds() ? 1 : 4);
  own->scale = all.scale + first;
  for (int i = 0; i < weight.kinds.count; ++i) own->sums[i] = all.sums[i] + first * weight.kinds.kinds[i].groups;
}

EDGE_RT_DEVICE void put_rounding(const float* x, int64_t features, const PackedParts& weight, const Activations& all,
                                 const ActiveExpert& expert, RoundRows* own) {
  own->x = x;
  own->features = features;
  own->norm_weight = own->norm_bias = nullptr;
  own->rounds = weight.rounds();
  own->kinds = weight.kinds;
  own->fine = weight.fine;
  put_rows(all, weight, expert.begin, expert.rows, &own->out);
}

// The product of a group of an expert's rows.
EDGE_RT_DEVICE void put_group(const ExpertsJob& job, const ActiveExpert& expert, int64_t group, bool is_up,
                              LinearRows* own) {
  const PackedParts& all = is_up ? job.gate_up : job.down;
  const int64_t begin = expert.begin + group * kGroupRows, left = expert.rows - group * kGroupRows;
  own->weight = all;
  for (int i = 0; i < all.count; ++i) {
    const int64_t tiles = all.parts[i].tiles / job.routing.experts;
    own->weight.parts[i].tiles = tiles;
    own->weight.parts[i].data += expert.expert * tiles * all.parts[i].tile_bytes();
  }
  own->weight.alternate = all.count > 1;
  put_rows(is_up ? job.up_in : job.down_in, all, begin, left < kGroupRows ? left : kGroupRows, &own->in);
  own->paired = is_up && is_gated(job.steps.activation);
  own->width = is_up ? job.intermediate : job.width;
  own->out_features = own->paired ? 2 * own->width : own->width;
  const float* const bias = is_up ? job.gate_up_bias : job.down_bias;
  own->bias = bias != nullptr ? bias + expert.expert * own->out_features : nullptr;
  own->gate = own->residual = own->post_norm = nullptr;
  own->unpacked = nullptr;
  own->steps = is_up ? job.steps : LinearSteps{};
  own->steps.residual_scale = 1.0f;
  own->y = (is_up ? job.made : job.outs) + begin * own->width;
}

// Rounds the block's row, at a place of its expert's.
EDGE_RT_DEVICE void round_place(const RoundRows& job, const float* x, int64_t row) {
  const int64_t begin = kRoundBlocks * block_y(), last = job.blocks();
  const int64_t end = begin + kRoundBlocks < last ? begin + kRoundBlocks : last;
  NormedRow source;
  source.x = x;
  source.weight = nullptr;
  source.rms = 1.0f;
  if (job.rounds) {
    round_row(job, source, row, begin, end);
  } else {
    copy_row(job, source, row, begin, end);
  }
}

// What choosing keeps in shared memory.
struct Choice {
  float likely[kMaxExperts];
  float sums[kMaxExperts];        // of groups
  uint8_t is_taken[kMaxExperts];  // or in a group that is not chosen
};

EDGE_RT_DEVICE float rank_of(const Routing& job, const float* likely, int e) {
  return job.choice_bias != nullptr ? add(likely[e], job.choice_bias[e]) : likely[e];
}

// The functions below are one thread's, in the order of experts_cpu.inl: sums have an order, and whatever the numbers
// are, as many are chosen as are wanted.
EDGE_RT_DEVICE void leave_groups(const Routing& job, Choice* choice) {
  const int size = job.experts / job.groups;
  for (int g = 0; g < job.groups; ++g) {
    float first = 0.0f, second = 0.0f;
    for (int i = 0; i < size; ++i) {
      const float rank = rank_of(job, choice->likely, g * size + i);
      if (i == 0 || rank > first) {
        second = i == 0 ? 0.0f : first;
        first = rank;
      } else if (i == 1 || rank > second) {
        second = rank;
      }
    }
    choice->sums[g] = add(first, second);
  }
  for (int e = 0; e < job.experts; ++e) choice->is_taken[e] = 1;
  for (int i = 0; i < job.chosen_groups; ++i) {
    int best = -1;
    for (int g = 0; g < job.groups; ++g) {
      if (choice->is_taken[g * size] != 0 && (best < 0 || choice->sums[g] > choice->sums[best])) best = g;
    }
    for (int e = best * size; e < (best + 1) * size; ++e) choice->is_taken[e] = 0;
  }
}

// Experts that are chosen get the mark 2.
EDGE_RT_DEVICE void take_best(const Routing& job, Choice* choice) {
  for (int i = 0; i < job.chosen; ++i) {
    int best = -1;
    float most = 0.0f;
    for (int e = 0; e < job.experts; ++e) {
      if (choice->is_taken[e] != 0) continue;
      const float rank = rank_of(job, choice->likely, e);
      if (best < 0 || rank > most) {
        best = e;
        most = rank;
      }
    }
    choice->is_taken[best] = 2;
  }
}

EDGE_RT_DEVICE void weigh(const Routing& job, const Choice& choice, int32_t* ids, float* weights) {
  for (int e = 0, i = 0; e < job.experts; ++e) {
    if (choice.is_taken[e] != 2) continue;
    ids[i] = e;
    weights[i++] = choice.likely[e];
  }
  if (job.gating == Gating::kChosen) {
    float most = weights[0], sum = 0.0f;
    for (int i = 1; i < job.chosen; ++i) most = weights[i] > most ? weights[i] : most;
    for (int i = 0; i < job.chosen; ++i) {
      weights[i] = vf_exp(add(weights[i], -most));
      sum = add(sum, weights[i]);
    }
    for (int i = 0; i < job.chosen; ++i) weights[i] = div(weights[i], sum);
  }
  if (job.is_normalised) {
    float sum = 0.0f;
    for (int i = 0; i < job.chosen; ++i) sum = add(sum, weights[i]);
    for (int i = 0; i < job.chosen; ++i) weights[i] = div(weights[i], add(sum, job.epsilon));
  }
  for (int i = 0; i < job.chosen; ++i) {
    weights[i] = mul(weights[i], job.scale);
    if (job.expert_scale != nullptr) weights[i] = mul(weights[i], job.expert_scale[ids[i]]);
  }
}

}  // namespace

// Grid: rows, and the norms of the router and of experts.
EDGE_RT_KERNEL(experts_norm, kRouteThreads, ExpertsJob) {
  const bool is_first = block_y() == 0;
  const RoundRows& job = is_first ? args.norm : args.expert_norm;
  float* const to = is_first ? args.normed : args.expert_normed;
  if (job.norm_weight == nullptr) return;
  if (job.is_layer_norm) {
    norm_row<LayerNormedRow>(job, to);
  } else {
    norm_row<NormedRow>(job, to);
  }
}

// Grid: experts, and behind them the gate of what is shared; rows.
EDGE_RT_KERNEL(experts_scores, 64, ExpertsJob) {
  EDGE_RT_SHARED float shared[64];
  const Routing& job = args.routing;
  const int64_t row = block_y(), expert = block_x();
  const bool is_gate = expert == job.experts;
  if (is_gate && job.shared_gate == nullptr) return;
  const float *const x = job.x + row * job.features, *const weight =
                                                         is_gate ? job.shared_gate : job.router + expert * job.features;
  const float score = sum_of_row(shared, static_cast<int>(job.features),
                                 [x, weight](int i, float sum) { return fma(x[i], weight[i], sum); });
  if (thread() != 0) return;
  if (is_gate) {
    job.shares[row] = div(1.0f, add(1.0f, vf_exp(-score)));
  } else {
    job.scores[row * job.stride() + expert] = job.bias != nullptr ? add(score, job.bias[expert]) : score;
  }
}

// Grid: rows.
EDGE_RT_KERNEL(experts_choose, kRouteThreads, ExpertsJob) {
  EDGE_RT_SHARED Choice choice;
  EDGE_RT_SHARED float most, sum;
  const Routing& job = args.routing;
  const int64_t row = block_x();
  const float* const scores = job.scores + row * job.stride();
  for (int e = thread(); e < job.experts; e += kRouteThreads) {
    choice.likely[e] = scores[e];
    choice.is_taken[e] = 0;
  }
  barrier();
  if (job.gating != Gating::kChosen) {
    const bool is_softmax = job.gating == Gating::kSoftmax;
    if (thread() == 0) {
      most = choice.likely[0];
      for (int e = 1; e < job.experts; ++e) most = choice.likely[e] > most ? choice.likely[e] : most;
    }
    barrier();
    for (int e = thread(); e < job.experts; e += kRouteThreads) {
      const float score = choice.likely[e], power = vf_exp(is_softmax ? add(score, -most) : -score);
      choice.likely[e] = is_softmax ? power : div(1.0f, add(1.0f, power));
    }
    barrier();
    if (is_softmax) {
      if (thread() == 0) {
        sum = 0.0f;
        for (int e = 0; e < job.experts; ++e) sum = add(sum, choice.likely[e]);
      }
      barrier();
      for (int e = thread(); e < job.experts; e += kRouteThreads) choice.likely[e] = div(choice.likely[e], sum);
      barrier();
    }
  }
  if (thread() != 0) return;
  if (job.chosen_groups < job.groups) leave_groups(job, &choice);
  take_best(job, &choice);
  weigh(job, choice, job.ids + row * job.chosen, job.weights + row * job.chosen);
}

// Grid: one block. Rows by expert, those of each in their order.
EDGE_RT_KERNEL(experts_gather, kGatherThreads, ExpertsJob) {
  EDGE_RT_SHARED int32_t counts[kMaxExperts];  // of rows; then where they begin
  EDGE_RT_SHARED int32_t slot_of[kMaxExperts];
  const Routing& job = args.routing;
  const int32_t places = static_cast<int32_t>(args.place_count());
  for (int e = thread(); e < job.experts; e += kGatherThreads) {
    int32_t count = 0;
    for (int32_t i = 0; i < places; ++i) count += job.ids[i] == e ? 1 : 0;
    counts[e] = count;
  }
  barrier();
  if (thread() == 0) {
    int32_t begin = 0, slot = 0, group = 0;
    for (int e = 0; e < job.experts; ++e) {
      const int32_t count = counts[e];
      counts[e] = begin;
      if (count == 0) continue;
      ActiveExpert& own = args.active[slot];
      own.expert = e;
      own.begin = begin;
      own.rows = count;
      own.first_group = group;
      slot_of[e] = slot++;
      begin += count;
      group += (count + kGroupRows - 1) / kGroupRows;
    }
    args.counts[0] = slot;
    args.counts[1] = group;
  }
  barrier();
  for (int e = thread(); e < job.experts; e += kGatherThreads) {
    int32_t place = counts[e];
    for (int32_t i = 0; i < places; ++i) {
      if (job.ids[i] != e) continue;
      args.slots[place] = slot_of[e];
      args.numbers[place] = i / job.chosen;
      args.places[i] = place++;
    }
  }
}

// Grid: as many experts as may have rows.
EDGE_RT_KERNEL(experts_describe, 32, ExpertsJob) {
  if (block_x() >= args.counts[0]) return;
  ActiveExpert& own = args.active[block_x()];
  if (thread() == 0) {
    put_rounding(args.x, args.width, args.gate_up, args.up_in, own, &own.up);
    put_rounding(args.made, args.intermediate, args.down, args.down_in, own, &own.down);
  }
  for (int64_t group = thread(); group * kGroupRows < own.rows; group += 32) {
    ExpertGroup& to = args.groups[own.first_group + group];
    put_group(args, own, group, true, &to.up);
    put_group(args, own, group, false, &to.down);
  }
}

// Grid: places, and stretches of blocks.
EDGE_RT_KERNEL(experts_round, kRoundThreads, ExpertsJob) {
  const int64_t place = block_x();
  const ActiveExpert& own = args.active[args.slots[place]];
  round_place(own.up, args.x + int64_t{args.numbers[place]} * args.width, place - own.begin);
}
EDGE_RT_KERNEL(experts_between, kRoundThreads, ExpertsJob) {
  const int64_t place = block_x();
  const ActiveExpert& own = args.active[args.slots[place]];
  round_place(own.down, args.made + place * args.intermediate, place - own.begin);
}

// Grid: tiles, or pairs of them, and as many groups of rows as there may be. 16 warps are to fit a multiprocessor, as
// in QuantLinear.
EDGE_RT_KERNEL_OF_BLOCKS(experts_up, Few8::kThreads, 16 / Few8::kWarps, ExpertsJob) {
  EDGE_RT_SHARED Few8::Shared shared;
  if (block_y() < args.counts[1]) multiply_few<Few8>(args.groups[block_y()].up, &shared);
}
EDGE_RT_KERNEL_OF_BLOCKS(experts_down, Few8::kThreads, 16 / Few8::kWarps, ExpertsJob) {
  EDGE_RT_SHARED Few8::Shared shared;
  if (block_y() < args.counts[1]) multiply_few<Few8>(args.groups[block_y()].down, &shared);
}
EDGE_RT_KERNEL(experts_up_floats, kFloatThreads, ExpertsJob) {
  EDGE_RT_SHARED FloatStage stage;
  if (block_y() < args.counts[1]) multiply_floats(args.groups[block_y()].up, 0, &stage);
}
EDGE_RT_KERNEL(experts_down_floats, kFloatThreads, ExpertsJob) {
  EDGE_RT_SHARED FloatStage stage;
  if (block_y() < args.counts[1]) multiply_floats(args.groups[block_y()].down, 0, &stage);
}

// Grid: rows, and stretches of as many numbers as there are threads.
EDGE_RT_KERNEL(experts_sum, kRouteThreads, ExpertsJob) {
  const Routing& job = args.routing;
  const int64_t row = block_x(), i = int64_t{block_y()} * kRouteThreads + thread(), at = row * args.width + i;
  if (i >= args.width) return;
  float value = 0.0f;
  for (int64_t k = row * job.chosen; k < (row + 1) * job.chosen; ++k) {
    value = fma(job.weights[k], args.outs[int64_t{args.places[k]} * args.width + i], value);
  }
  if (args.shared != nullptr) {
    value = args.has_shares ? fma(job.shares[row], args.shared[at], value) : add(value, args.shared[at]);
  }
  args.y[at] = args.residual != nullptr ? fma(args.residual_scale, value, args.residual[at]) : value;
}

}  // namespace edge_rt::gpu
