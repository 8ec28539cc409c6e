// Experts: feed-forwards of one shape, of which a router chooses some for each row; their weighted sum.
//
// What is computed for a row, in this order of operations on every instruction set:
// - v = norm(x) if there is one, as in quant_linear.h.
// - score[e] = v . router[e]: four sums of 16 lanes take turns over 16 inputs each, multiply-adds fused, and are joined
// as
//   (0 + 1) + (2 + 3); then + bias[e].
// - What is likely: softmax of all scores, their exponentials being added from the first expert to the last;
//   1 / (1 + exp(-score)); or the scores themselves.
// - Those are chosen whose rank, the likely value plus the choice bias, is largest; of equal ones the first. Where
//   experts are in groups, only those of the chosen groups are: of groups, neighbours of equal number, whose two best
//   ranks have the largest sum; of equal ones the first.
// - Weights, the chosen in the order of their numbers: the likely values, or softmax of the chosen scores; then each
//   divided by (their sum + epsilon) if they are normalised; then times scale; then times the expert's own scale.
// - Every chosen expert: out = down(activation(gate(u), up(u))), u being v, or x behind a norm of theirs, or rows of
//   their own; they and what is between the matrices rounded as QuantLinear rounds its input, limits and bias as there.
//   y = 0; in the order of their numbers y = fma(weight, out, y).
// - What another feed-forward has made is added: y = y + shared, or y = fma(share, shared, y) with share =
//   1 / (1 + exp(-(v . shared_gate))), that product as a router's.
// - y = (y * rms) * post_norm as in quant_linear.h, if there is one. With a sum_norm shared is added behind that and
// not
//   before, as a residual is, and then y = (y * rms) * sum_norm.
// - y = fma(residual_scale, y, residual) if there is one.
//
// Rows are gathered by expert, so that weights are read once for all of its rows. Since a product's bits do not depend
// on the rows beside it, those of a row depend on that row alone.
//
// All experts' matrices lie one behind the other, the tiles of an expert's gate and up taking turns. They are read
// where they are, or, if a cache stands for their addresses, from there (expert_cache.h).
#pragma once

#include <cstdint>

#include "ops/quant_linear/quant_linear.h"

namespace edge_rt {

constexpr int kMaxExperts = 4096;

enum class Gating : int { kSoftmax, kChosen, kSigmoid };

struct Routing {
  int64_t rows, features;
  int experts, chosen;
  Gating gating;
  Flag is_normalised;
  float epsilon, scale;
  const float* x;             // [rows][features], behind the norm
  const float* router;        // [experts][features]
  const float* bias;          // [experts] or nullptr
  const float* choice_bias;   // [experts] or nullptr
  int groups, chosen_groups;  // of experts
  const float* expert_scale;  // [experts] or nullptr
  const float* shared_gate;   // [features] or nullptr
  float* shares;              // [rows], if there is a shared gate
  float* scores;              // [rows][stride()]: become what is likely
  int32_t* ids;               // [rows][chosen], rising
  float* weights;             // [rows][chosen]

  EDGE_RT_IN_PLACE int64_t stride() const { return (experts + 15) / 16 * 16; }
};

// Rows of x that are rounded, in any order and as often as they are wanted; x has no norm.
struct GatheredRows : RoundRows {
  const int32_t* numbers;  // of a row in x
};

// The rows of one expert. `gate_up` makes its own rows between the matrices, whose sum no row sees before `down`; the y
// of `down` is not used.
struct ExpertRows {
  LinearRows gate_up, down;
  GatheredRows rounding;
  RoundRows between;
  const float* weights;  // of each row
};

struct ExpertSum {
  const ExpertRows* experts;  // rising
  int64_t count;
  int64_t rows, width;
  const float* shared;    // [rows][width] or nullptr
  const float* shares;    // [rows] or nullptr: 1
  const float* residual;  // [rows][width] or nullptr; not read where a norm comes before it
  float residual_scale;
  float* y;  // [rows][width]
  // Experts may come in several lots, each behind the one before in number: the first begins with y = 0, and behind the
  // last there is the residual.
  bool is_first = true, is_last = true;
};

// Memory for sums of 16 outputs of all rows, in front of that for a tile: rows of y lie so far apart that few of them
// are in a cache at a time.
EDGE_RT_IN_PLACE inline int64_t sum_bytes(int64_t rows) { return rows * kTileRows * 4; }

struct ExpertsKernels {
  // Norms rows [begin, end) of a job to float [rows][features].
  void (*norm)(const RoundRows& job, int64_t begin, int64_t end, float* to);
  // Scores of experts [begin, end) for all rows.
  void (*scores)(const Routing& job, int64_t begin, int64_t end);
  // Chooses for rows [begin, end).
  void (*choose)(const Routing& job, int64_t begin, int64_t end);
  void (*round_group)(const GatheredRows& job, int64_t group);
  // Tiles [begin, end) of the outputs, of all experts and rows; those up to fetch_end may be fetched ahead. `memory`:
  // sum_bytes for all rows, and behind them what a tile takes unpacked; or nullptr.
  void (*add)(const ExpertSum& sum, int64_t begin, int64_t end, int64_t fetch_end, uint8_t* memory);
};

}  // namespace edge_rt
