// QuantLinear: y = x * W^T with W in blocks of 32, and what stands before and behind such a product in a transformer.
//
// Weights lie in tiles of 16 output rows (layout "tile16"): [tiles][blocks][block_bytes]. A block is 32 inputs:
//   w4m  256 code bytes, 16 fp16 scales d, 16 fp16 minima m    weight = d * q + m    q in 0..15
//   w4   256 code bytes, 16 fp16 scales d                      weight = d * (q - 8)
//   w8   512 code bytes, 16 fp16 scales d                      weight = d * q        q in -128..127
//   f16  32 x 16 halves, [input][row]                          activations are not rounded
//   f32  32 x 16 floats, [input][row]
// Byte 64 i + 4 r + j of the codes belongs to row r. 8 bit: input 4 i + j. 4 bit: input 8 i + j in the low half, and
// 8 i + 4 + j in the high half. So four inputs of a row are four neighbouring bytes, 16 rows fill 64 bytes, and one
// load serves 16, 8 or 4 lanes.
//
// For the other formats the rows of x are rounded to int8 per block of 32: a = max |x|, scale = a / 127,
// code = round(x * (127 / a)), ties to even; all 0 where a is 0. With dot the exact integer sum of code and q
// (w4: q - 8), a block adds
//   t = fma(C + dot, d, -C * d), C = 1.5 * 2^23      which is float(dot) * d, rounded once
//   f = fma(t, scale, f)                             w4m then: f = fma(m, scale * float(sum of codes), f)
// to its row's one sum f, blocks in ascending order. Rows never meet, so their bits depend on nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge_rt {

constexpr int kTileRows = 16;
constexpr int kBlock = 32;
// Rows of x that share one walk over a tile.
constexpr int kGroupRows = 8;

enum class WeightFormat : int { kW4M, kW4, kW8, kF16, kF32 };
constexpr int kWeightFormatCount = 5;

// "w4m", "w4", "w8", "f16", "f32".
const char* weight_format_name(WeightFormat format);
bool weight_format_from_name(const char* name, WeightFormat* out);

constexpr int64_t block_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kW4M: return 320;
    case WeightFormat::kW4: return 288;
    case WeightFormat::kW8: return 544;
    case WeightFormat::kF16: return 1024;
    case WeightFormat::kF32: return 2048;
  }
  return 0;
}

constexpr bool rounds_activations(WeightFormat format) {
  return format != WeightFormat::kF16 && format != WeightFormat::kF32;
}

// A packed matrix. Columns behind the true number of inputs are zero.
struct PackedWeight {
  const uint8_t* data;
  int64_t tiles;
  int64_t blocks;
  WeightFormat format;

  int64_t tile_bytes() const { return blocks * block_bytes(format); }
};

// Rows of x as the tile kernels read them, in groups of kGroupRows (the last group holds the rest, r rows):
//   codes  int8  [group][block][r][32]; with a float format float [row][blocks * 32] instead
//   scale  float [group][block][r]
//   extra  4 bytes, as scale: w4m: float, scale * sum of codes; w4: int32, -8 * sum; w8: int32, -128 * sum
struct Activations {
  int64_t rows;
  int64_t blocks;
  int8_t* codes;
  float* scale;
  uint32_t* extra;

  int64_t groups() const { return (rows + kGroupRows - 1) / kGroupRows; }
  int group_rows(int64_t group) const {
    const int64_t left = rows - group * kGroupRows;
    return static_cast<int>(left < kGroupRows ? left : kGroupRows);
  }
  int8_t* group_codes(int64_t group) const { return codes + group * kGroupRows * blocks * kBlock; }
  float* group_scale(int64_t group) const { return scale + group * kGroupRows * blocks; }
  uint32_t* group_extra(int64_t group) const { return extra + group * kGroupRows * blocks; }
};

// What turns rows of x into Activations: RMSNorm if norm_weight is given (v = x * rms * weight, two roundings), codes.
struct RoundRows {
  const float* x;            // [rows][features]
  int64_t features;          // at most blocks * 32; a multiple of 32 unless the format is a float one
  const float* norm_weight;  // [features] or nullptr
  float epsilon;
  WeightFormat format;
  Activations out;
};

// What turns Activations into y. Rows count as packed (out_features), outputs as they lie in y (width).
struct LinearRows {
  PackedWeight weight;
  Activations in;
  int64_t out_features;   // rows of the matrix without padding
  int64_t width;          // row length of y, residual and gate
  bool paired;            // SwiGLU of tile pairs: even tiles hold gate rows, odd ones up rows
  const float* bias;      // [out_features] or nullptr
  const float* gate;      // [rows][width] or nullptr: y = silu(gate) * value
  const float* residual;  // [rows][width] or nullptr: y = residual + value
  float* y;               // [rows][width]
};

struct QuantLinearKernels {
  // Blocks [begin, end) of one group of rows. Rows of a group share cache lines, blocks do not.
  void (*round_group)(const RoundRows& job, int64_t group, int64_t begin, int64_t end);
  // Tiles [begin, end) of all rows; pairs are never cut. Memory up to prefetch_end may be fetched ahead of its use.
  void (*tiles)(const LinearRows& job, int64_t begin, int64_t end, const uint8_t* prefetch_end);
};

}  // namespace edge_rt
