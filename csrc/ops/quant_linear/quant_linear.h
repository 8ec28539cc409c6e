// QuantLinear: y = x * W^T with W in blocks of 32, and what stands before and behind such a product in a transformer.
//
// Where weights lie, and what they are: weight_format.h.
//
// Unless weights are floats, the rows of x are rounded to int8 per block of 32: a = max |x|, scale = a / 127,
// code = round(x * (127 / a)), ties to even; all 0 where a is 0. A group of weights (a block, or half of one) has a
// scale D and, in some formats, a minimum M; both are exact products. With dot the exact integer sum of codes of x and
// of weights, less the format's offset or their zero point, a group adds
//   t = fma(C + dot, D, -C * D), C = 1.5 * 2^23      which is float(dot) * D, rounded once
//   f = fma(t, scale, f)                             with a minimum then: f = fma(M, scale * float(sum of codes), f)
// to its row's one sum f, groups in ascending order. Rows never meet, so their bits depend on nothing else.
//
// Some blocks may be fine: what rounding leaves of them is rounded once more, to 16 bits in all. With `code` and
// `scale` as above,
//   rest = fma(-scale, code, x),  fine code = round(rest * min(254 * (127 / a), largest float)),  fine scale = scale /
//   254
// Fine codes are further blocks of the row, behind all others and in the order of those that they refine: with the
// weights of these they go on with the sum f.
//
// A format with a scale of whole rows multiplies f by it then.
//
// Behind the sum f, each step rounded once and each left out where it would change nothing:
//   v = f + bias;  v = silu(gate) * v or gelu_tanh(gate) * v, or gelu_tanh(v) * gate, or max(v, 0)^2;
//   v = output_scale * v;  v = softcap * tanh(v / softcap);
//   v = (v * rms) * post_norm, rms of the whole row, or of each group of as many features as there are weights;
//   y = fma(residual_scale, v, residual)
// gelu_tanh(x) = x * sigmoid(2u) with 2u = x * fma(x^2, c3, c1): 0.5 x (1 + tanh u) without the difference.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/quant_linear/weight_format.h"

namespace edge_rt {

// Of functions that kernels call: a copy of its own would be one for all instruction sets, compiled for one of them.
#define EDGE_RT_IN_PLACE __attribute__((always_inline))

// Rows of x that share one walk over a tile.
constexpr int kGroupRows = 8;
// From so many groups of rows on a tile is unpacked once for all of them, instead of in every walk.
constexpr int64_t kUnpackGroups = 3;
// Most bytes that a block of a tile takes then: codes as bytes, two scales and minima of 16 rows as floats.
constexpr int64_t kUnpackedBlockBytes = 512 + 4 * 64;
// Matrices of several formats that one product reads: queries, keys and values.
constexpr int kMaxParts = 3;
// Stretches of neighbouring fine blocks.
constexpr int kMaxFineRuns = 16;

// A packed matrix. Columns behind the true number of inputs are zero.
struct PackedWeight {
  const uint8_t* data;
  int64_t tiles;
  int64_t blocks;
  WeightFormat format;

  EDGE_RT_IN_PLACE int64_t tile_bytes() const { return blocks / facts(format).unit_blocks * unit_bytes(format); }
  // Of all tiles, finer codes included.
  int64_t bytes() const { return tiles * blocks / facts(format).unit_blocks * stored_unit_bytes(format); }
  const uint8_t* tile(int64_t index) const { return data + index * tile_bytes(); }
  // Finer codes of a tile; of formats that have none, where they would be.
  EDGE_RT_IN_PLACE const uint8_t* finer(int64_t index) const {
    return data + tiles * tile_bytes() + index * blocks * finer_bytes(format);
  }
};

// The kinds of sums that a product needs, each once.
struct SumKinds {
  SumKind kinds[kMaxParts];
  int count = 0;

  // Returns the number of the kind.
  int add(SumKind kind) {
    int i = 0;
    while (i < count && !(kinds[i] == kind)) ++i;
    if (i == count) kinds[count++] = kind;
    return i;
  }
  // Words of a block and row.
  int words() const {
    int all = 0;
    for (int i = 0; i < count; ++i) all += kinds[i].groups;
    return all;
  }
};

// The fine blocks of a row of x, in stretches [begin, end) that rise and do not touch.
struct FineBlocks {
  int32_t count = 0;   // stretches
  int32_t blocks = 0;  // of all of them
  int32_t begin[kMaxFineRuns] = {};
  int32_t end[kMaxFineRuns] = {};

  // The block whose weights block number `block` of a row is multiplied with, of `plain` that are not fine codes.
  EDGE_RT_IN_PLACE int64_t weights_of(int64_t block, int64_t plain) const {
    if (block < plain) return block;
    block -= plain;
    int run = 0;
    while (block >= end[run] - begin[run]) {
      block -= end[run] - begin[run];
      ++run;
    }
    return begin[run] + block;
  }
};

// Matrices that are read as one, first output rows first.
struct PackedParts {
  PackedWeight parts[kMaxParts];
  int sums[kMaxParts];  // number of a part's kind
  int count;
  // Two matrices whose tiles alternate, beginning with the first one's: what `paired` wants.
  Flag alternate;
  SumKinds kinds;
  FineBlocks fine;

  EDGE_RT_IN_PLACE int64_t blocks() const { return parts[0].blocks; }
  // Of a row of x, fine codes included.
  int64_t row_blocks() const { return parts[0].blocks + fine.blocks; }
  bool rounds() const { return rounds_activations(parts[0].format); }
  EDGE_RT_IN_PLACE int64_t tiles() const {
    int64_t all = 0;
    for (int i = 0; i < count; ++i) all += parts[i].tiles;
    return all;
  }
  // The part that a tile lies in; `tile` becomes its number there.
  EDGE_RT_IN_PLACE int find(int64_t* tile) const {
    if (alternate) {
      const int part = static_cast<int>(*tile % 2);
      *tile /= 2;
      return part;
    }
    int part = 0;
    while (part + 1 < count && *tile >= parts[part].tiles) *tile -= parts[part++].tiles;
    return part;
  }
  // Where tiles that end with number `end` end in a part that holds some of them.
  EDGE_RT_IN_PLACE int64_t end_in(int part, int64_t end) const {
    if (alternate) return end / 2;
    for (int i = 0; i < part; ++i) end -= parts[i].tiles;
    return end < parts[part].tiles ? end : parts[part].tiles;
  }
};

// A single matrix as parts.
inline PackedParts one_part(const PackedWeight& weight) {
  PackedParts out{};
  out.parts[0] = weight;
  out.sums[0] = out.kinds.add(sum_kind(weight.format));
  out.count = 1;
  return out;
}

// Rows of x as the tile kernels read them, in groups of kGroupRows (the last group holds the rest, r rows); fine codes
// are further blocks:
//   codes  int8  [group][block][r][32]; with float weights float [row][blocks * 32] instead
//   scale  float [group][block][r]
//   sums   4 bytes each, of every kind: [group][block][group of weights][r]
struct Activations {
  int64_t rows;
  int64_t blocks;
  int8_t* codes;
  float* scale;
  uint32_t* sums[kMaxParts];

  int64_t groups() const { return (rows + kGroupRows - 1) / kGroupRows; }
  int group_rows(int64_t group) const {
    const int64_t left = rows - group * kGroupRows;
    return static_cast<int>(left < kGroupRows ? left : kGroupRows);
  }
  int8_t* group_codes(int64_t group) const { return codes + group * kGroupRows * blocks * kBlock; }
  float* group_scale(int64_t group) const { return scale + group * kGroupRows * blocks; }
  uint32_t* group_sums(int kind, int words, int64_t group) const {
    return sums[kind] + group * kGroupRows * blocks * words;
  }
};

// What turns rows of x into Activations: a norm if norm_weight is given, then codes.
//   RMSNorm    v = (x * rms) * weight
//   LayerNorm  v = fma((x - mean) * scale, weight, bias), or without a bias ((x - mean) * scale) * weight
struct RoundRows {
  const float* x;            // [rows][features]
  int64_t features;          // at most 32 times the matrix's blocks; a multiple of 32 unless weights are floats
  const float* norm_weight;  // [features] or nullptr
  float epsilon;
  Flag rounds;
  SumKinds kinds;
  Activations out;
  Flag is_layer_norm = false;
  const float* norm_bias = nullptr;  // [features] or nullptr; of LayerNorm
  FineBlocks fine = {};

  // Blocks of a row that are not fine codes.
  EDGE_RT_IN_PLACE int64_t blocks() const { return out.blocks - fine.blocks; }
};

enum class Activation : int { kNone, kSwiglu, kGeglu, kRelu2, kGeluGate };

constexpr bool is_gated(Activation activation) {
  return activation == Activation::kSwiglu || activation == Activation::kGeglu || activation == Activation::kGeluGate;
}

// Steps behind a product that few models have.
struct LinearSteps {
  Activation activation = Activation::kNone;
  float output_scale = 1.0f;
  float softcap = 0.0f;  // 0: none
  float residual_scale = 1.0f;
  // SwiGLU of g = min(limit, gate) and u = max(-limit, min(limit, value)): g / (1 + exp(-(slope * g))) * (u +
  // up_offset).
  float limit = 0.0f;  // 0: none
  float slope = 1.0f;
  float up_offset = 0.0f;

  EDGE_RT_IN_PLACE bool has_limits() const { return limit != 0.0f || slope != 1.0f || up_offset != 0.0f; }
};

// What turns Activations into y. Rows count as packed (out_features), outputs as they lie in y (width).
// How far ahead of their use weights are fetched into the second-level cache, 0: not, and into the first, in bytes.
struct FetchAhead {
  int64_t far = 0, near = 0;
};

struct LinearRows {
  PackedParts weight;
  Activations in;
  int64_t out_features;   // rows of the matrix without padding
  int64_t width;          // row length of y, residual and gate
  Flag paired;            // a gated activation of tile pairs: even tiles hold gate rows, odd ones up rows
  const float* bias;      // [out_features] or nullptr
  const float* gate;      // [rows][width] or nullptr: the gate of the activation
  const float* residual;  // [rows][width] or nullptr
  float* y;               // [rows][width]
  // Memory of the thread for unpacked tiles, unpacked_bytes(job), or nullptr: they are unpacked in every walk.
  uint8_t* unpacked;
  LinearSteps steps = {};
  const float* post_norm = nullptr;  // [post_width] or nullptr: RMSNorm of whole rows, or groups, before the residual
  int64_t post_width = 0;            // divides width
  float post_epsilon = 0.0f;
  FetchAhead fetch;
};

EDGE_RT_IN_PLACE inline size_t unpacked_bytes(const LinearRows& job) {
  return static_cast<size_t>((job.paired ? 2 : 1) * job.weight.blocks() * kUnpackedBlockBytes);
}

struct QuantLinearKernels {
  // Blocks [begin, end) of one group of rows, and their fine codes. Rows of a group share cache lines, blocks do not.
  void (*round_group)(const RoundRows& job, int64_t group, int64_t begin, int64_t end);
  // Tiles [begin, end) of all rows; pairs are never cut. Tiles up to prefetch_end may be fetched ahead of their use.
  // With a post_norm the values are left in y as they are before it.
  void (*tiles)(const LinearRows& job, int64_t begin, int64_t end, int64_t prefetch_end);
  // Behind all tiles, of a job with a post_norm: that and the residual, of rows [begin, end).
  void (*post_norm)(const LinearRows& job, int64_t begin, int64_t end);
};

}  // namespace edge_rt
