// Formats of packed matrices: what a block of 32 inputs by 16 rows holds, and where.
//
// Weights lie in tiles of 16 output rows (layout "tile16"): [tiles][units][unit_bytes]. A unit is one, two, four or
// eight blocks (up to 256 inputs) that share a scale d. Its bytes, in this order:
//
//   codes   of every block, in lines of 64 bytes: byte 4 r + j of a line belongs to row r. Quartet k of a block is its
//           inputs 4 k ... 4 k + 3; j counts within it.
//           nibbles  4 lines; line i holds quartet 2 i in the low halves, 2 i + 1 in the high ones
//           bytes    8 lines, one a quartet
//           bits     1 line; bit k of a byte is quartet k's
//           pairs    2 lines; bits 2 (k % 4) and 2 (k % 4) + 1 of line k / 4 are quartet k's
//           5 bits are nibbles and bits (the highest), 6 nibbles and pairs (the highest), 3 pairs and bits (the
//           highest)
//   scales  of every group (a block, or each half of it) of every block: a byte for each of 16 rows
//   minima  as scales, where they are bytes of their own
//   zeros   instead of both a byte for each of 16 rows, where codes have a zero point
//   d, m    16 fp16 numbers each, as far as the format has them; d of nv4 are 16 float32 numbers
//
// Nested codes have two halves. The first ones lie in units as those of w4m do, and are a matrix of w4m as they are.
// The finer ones lie behind all units of the matrix: [tiles][units], 4 lines a block, in the order of the first. So a
// walk over the first halves alone reads memory without gaps, and 5 of 9 bytes; a walk over both reads two streams.
//
// With q the code, s a group's scale and m its minimum, as integers:
//
//   w4m   d q + m                                 as Q4_1        w5m   d q + m           5 bits, as Q5_1
//   w4    d (q - 8)                               as Q4_0        w5    d (q - 16)        5 bits, as Q5_0
//   w8    d q, q in -128..127                     as Q8_0
//   w4k   (d s) q - (m t), t the group's minimum  as Q4_K        w5k   5 bits, as Q5_K
//   w6k   (d s) (q - 32), groups of 16            as Q6_K        w3k   (d s) (q - 4), groups of 16, as Q3_K
//   w2k   (d s) q - (m t), groups of 16; s and t are the low and the high half of one byte, as Q2_K
//   t4    d table[q]                              as IQ4_NL      t4k   (d s) table[q], as IQ4_XS
//   mx4   2^(e - 128) table[q], e a byte a row    as MXFP4, whose table is doubled
//   nv4   (s table[q]) d, s the 8-bit float a byte is, d alike in all units of a row, as NVFP4, whose table is doubled
//   w4z32, w4z64, w4z128  d (q - z), z the zero point, a byte; units of 32, 64 and 128 inputs, as GPTQ and AWQ
//   w8n   (d / 16) q + (m - d / 2), q = 16 * code + finer code; w8n_upper is the same memory, read as w4m
//   f16, bf16, f32  [input][row]; activations are not rounded
//
// Products in brackets are exact in float32; the sum in brackets is rounded once. In products of rows, d of nv4
// multiplies the whole sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/flag.h"

namespace edge_rt {

constexpr int kTileRows = 16;
constexpr int kBlock = 32;

enum class WeightFormat : int {
  kW4M,
  kW4,
  kW8,
  kF16,
  kF32,
  kW5M,
  kW5,
  kW4K,
  kW5K,
  kW6K,
  kW3K,
  kW2K,
  kT4,
  kT4K,
  kMX4,
  kBF16,
  kW4Z32,
  kW4Z64,
  kW4Z128,
  kW8N,
  kW8NUpper,
  kNV4
};
constexpr int kWeightFormatCount = 22;

enum class CodeKind : int { kNibbles, kBytes, kFive, kSix, kThree, kTwo, kTable, kFloats, kNested };

// How a group's scale is made: a half of its own, d times a byte, d times a signed byte, d and m times the halves of a
// byte, an exponent, d alone, beside a zero point that is taken from the codes, or a float of 8 bits, beside a d that
// multiplies whole rows.
enum class ScaleKind : int { kHalf, kByte, kSignedByte, kNibbles, kExponent, kZero, kFloat8, kNone };

struct WeightFacts {
  const char* name;
  CodeKind codes;
  ScaleKind scales;
  bool has_minimum;
  int offset;       // what is taken from codes that instructions want unsigned
  int max_code;     // largest of those, before the offset is taken
  int unit_blocks;  // blocks that share d
  int groups;       // scales of a block
  int float_bytes;  // of a weight that is no code
};

constexpr WeightFacts kWeightFacts[kWeightFormatCount] = {
    {"w4m", CodeKind::kNibbles, ScaleKind::kHalf, true, 0, 15, 1, 1, 0},
    {"w4", CodeKind::kNibbles, ScaleKind::kHalf, false, 8, 15, 1, 1, 0},
    {"w8", CodeKind::kBytes, ScaleKind::kHalf, false, 128, 255, 1, 1, 0},
    {"f16", CodeKind::kFloats, ScaleKind::kNone, false, 0, 0, 1, 1, 2},
    {"f32", CodeKind::kFloats, ScaleKind::kNone, false, 0, 0, 1, 1, 4},
    {"w5m", CodeKind::kFive, ScaleKind::kHalf, true, 0, 31, 1, 1, 0},
    {"w5", CodeKind::kFive, ScaleKind::kHalf, false, 16, 31, 1, 1, 0},
    {"w4k", CodeKind::kNibbles, ScaleKind::kByte, true, 0, 15, 8, 1, 0},
    {"w5k", CodeKind::kFive, ScaleKind::kByte, true, 0, 31, 8, 1, 0},
    {"w6k", CodeKind::kSix, ScaleKind::kSignedByte, false, 32, 63, 8, 2, 0},
    {"w3k", CodeKind::kThree, ScaleKind::kSignedByte, false, 4, 7, 8, 2, 0},
    {"w2k", CodeKind::kTwo, ScaleKind::kNibbles, true, 0, 3, 8, 2, 0},
    {"t4", CodeKind::kTable, ScaleKind::kHalf, false, 128, 255, 1, 1, 0},
    {"t4k", CodeKind::kTable, ScaleKind::kSignedByte, false, 128, 255, 8, 1, 0},
    {"mx4", CodeKind::kTable, ScaleKind::kExponent, false, 128, 255, 1, 1, 0},
    {"bf16", CodeKind::kFloats, ScaleKind::kNone, false, 0, 0, 1, 1, 2},
    {"w4z32", CodeKind::kNibbles, ScaleKind::kZero, false, 0, 15, 1, 1, 0},
    {"w4z64", CodeKind::kNibbles, ScaleKind::kZero, false, 0, 15, 2, 1, 0},
    {"w4z128", CodeKind::kNibbles, ScaleKind::kZero, false, 0, 15, 4, 1, 0},
    {"w8n", CodeKind::kNested, ScaleKind::kHalf, true, 0, 255, 1, 1, 0},
    {"w8n_upper", CodeKind::kNibbles, ScaleKind::kHalf, true, 0, 15, 1, 1, 0},
    {"nv4", CodeKind::kTable, ScaleKind::kFloat8, false, 128, 255, 2, 2, 0},
};

constexpr const WeightFacts& facts(WeightFormat format) { return kWeightFacts[static_cast<int>(format)]; }

bool weight_format_from_name(const char* name, WeightFormat* out);

constexpr bool has_zero_point(WeightFormat format) { return facts(format).scales == ScaleKind::kZero; }
constexpr bool has_row_scale(WeightFormat format) { return facts(format).scales == ScaleKind::kFloat8; }
constexpr bool rounds_activations(WeightFormat format) { return facts(format).codes != CodeKind::kFloats; }
constexpr bool is_nested(WeightFormat format) { return facts(format).codes == CodeKind::kNested; }

// The format whose kernels read units of a format.
constexpr WeightFormat read_as(WeightFormat format) {
  return format == WeightFormat::kW8NUpper ? WeightFormat::kW4M : format;
}

constexpr int code_bytes(CodeKind codes) {
  switch (codes) {
    case CodeKind::kNibbles:
    case CodeKind::kNested:
    case CodeKind::kTable: return 256;
    case CodeKind::kBytes: return 512;
    case CodeKind::kFive: return 320;
    case CodeKind::kSix: return 384;
    case CodeKind::kThree: return 192;
    case CodeKind::kTwo: return 128;
    case CodeKind::kFloats: return 0;
  }
  return 0;
}

// Where the parts of a unit begin.
struct UnitLayout {
  int code_bytes;                   // of a block
  int scales, minima, d, m, bytes;  // zero points lie where other formats have scales
};

constexpr UnitLayout make_unit_layout(WeightFormat format) {
  const WeightFacts& f = facts(format);
  UnitLayout at{};
  at.code_bytes = f.codes == CodeKind::kFloats ? kBlock * kTileRows * f.float_bytes : code_bytes(f.codes);
  at.scales = f.unit_blocks * at.code_bytes;
  const bool has_bytes = f.scales != ScaleKind::kHalf && f.scales != ScaleKind::kNone;
  const int byte_rows = f.scales == ScaleKind::kZero ? 1 : f.unit_blocks * f.groups;
  at.minima = at.scales + (has_bytes ? byte_rows * kTileRows : 0);
  const bool has_halves = f.scales != ScaleKind::kExponent && f.scales != ScaleKind::kNone;
  at.d = at.minima + (f.scales == ScaleKind::kByte && f.has_minimum ? f.unit_blocks * f.groups * kTileRows : 0);
  at.m = at.d + (f.scales == ScaleKind::kFloat8 ? 4 * kTileRows : has_halves ? 2 * kTileRows : 0);
  at.bytes = at.m + (f.has_minimum ? 2 * kTileRows : 0);
  return at;
}

struct UnitLayouts {
  UnitLayout of[kWeightFormatCount];
};

constexpr UnitLayouts make_unit_layouts() {
  UnitLayouts all{};
  for (int i = 0; i < kWeightFormatCount; ++i) all.of[i] = make_unit_layout(static_cast<WeightFormat>(i));
  return all;
}

// A table, so that kernels of several instruction sets share no code that makes it.
constexpr UnitLayouts kUnitLayouts = make_unit_layouts();

constexpr const UnitLayout& unit_layout(WeightFormat format) { return kUnitLayouts.of[static_cast<int>(format)]; }

constexpr int64_t unit_bytes(WeightFormat format) { return unit_layout(format).bytes; }
constexpr int64_t unit_inputs(WeightFormat format) { return int64_t{kBlock} * facts(format).unit_blocks; }

// Bytes of a unit's finer codes, which lie behind all units.
constexpr int64_t finer_bytes(WeightFormat format) {
  return is_nested(format) || format == WeightFormat::kW8NUpper ? kBlock * kTileRows / 2 : 0;
}
// Bytes of a matrix for every unit.
constexpr int64_t stored_unit_bytes(WeightFormat format) { return unit_bytes(format) + finer_bytes(format); }

// Bytes of one block of 16 rows: its share of a unit.
constexpr int64_t block_bytes(WeightFormat format) { return unit_bytes(format) / facts(format).unit_blocks; }

static_assert(unit_bytes(WeightFormat::kW4M) == 320 && unit_bytes(WeightFormat::kW4) == 288);
static_assert(unit_bytes(WeightFormat::kW8) == 544 && unit_bytes(WeightFormat::kF32) == 2048);
static_assert(unit_bytes(WeightFormat::kW4K) == 2368 && unit_bytes(WeightFormat::kW5K) == 2880);
static_assert(unit_bytes(WeightFormat::kW6K) == 3360 && unit_bytes(WeightFormat::kW3K) == 1824);
static_assert(unit_bytes(WeightFormat::kW2K) == 1344 && unit_bytes(WeightFormat::kT4K) == 2208);
static_assert(unit_bytes(WeightFormat::kMX4) == 272 && unit_bytes(WeightFormat::kBF16) == 1024);
static_assert(unit_bytes(WeightFormat::kW4Z32) == 304 && unit_bytes(WeightFormat::kW4Z64) == 560);
static_assert(unit_bytes(WeightFormat::kW4Z128) == 1072 && unit_bytes(WeightFormat::kNV4) == 640);
static_assert(unit_bytes(WeightFormat::kW8N) == 320 && stored_unit_bytes(WeightFormat::kW8N) == 576);
static_assert(unit_bytes(WeightFormat::kW8N) % 64 == 0, "finer codes begin at a line wherever units do");

// Weights of formats with a table.
constexpr int8_t kTableIQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kTableMX4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr bool has_float_table(WeightFormat format) {
  return format == WeightFormat::kMX4 || format == WeightFormat::kNV4;
}
constexpr const int8_t* table_of(WeightFormat format) { return has_float_table(format) ? kTableMX4 : kTableIQ4; }

// An integer below 2^22 in size, added to these bits, is a float larger by kMagic: a conversion for one addition.
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
constexpr int32_t kMagicBits = 0x4B400000;

// What of the sums of a row's codes a format needs, for every group: the sum times the row's scale as a float, if
// there is a minimum; else, as an int32, what sums of products begin with, kMagicBits less the sum times the offset; if
// weights have zero points, the negative sum alone (times is 1).
struct SumKind {
  Flag scaled;
  int times;
  int groups;
  constexpr bool operator==(const SumKind& o) const {
    return scaled == o.scaled && times == o.times && groups == o.groups;
  }
};

constexpr SumKind sum_kind(WeightFormat format) {
  const WeightFacts& f = facts(format);
  return {f.has_minimum, has_zero_point(format) ? 1 : f.has_minimum ? 0 : f.offset, f.groups};
}

}  // namespace edge_rt
