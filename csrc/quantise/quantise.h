// Rounds rows of floats to codes and scales: what edge_rt/export/quantise/ describes, for 16 rows at a time.
//
// Rows are lanes and never meet: the bits of a row depend on it alone, on every instruction set, in any company.
#pragma once

#include <cstdint>

#include "common/export.h"
#include "kernels/step_table.h"

namespace edge_rt {

constexpr int kMostStarts = 16;
constexpr int kLaneRows = 16;
// Tiles of 16 rows that share what is read of a feedback matrix.
constexpr int kMostTiles = 4;

enum RoundingScales : int32_t { kHalfScales, kSignedScales, kByteScales };

// What a format can hold, and where the search for scales begins; edge_rt/export/quantise/native.py has the same.
struct RoundingFormat {
  int32_t group;  // inputs that share a scale
  int32_t unit;   // inputs that share d
  int32_t scales;
  int32_t has_minimum;
  int32_t offset;  // a code is its integer plus this, as a byte; without a table
  int32_t rounds;
  int32_t num_starts;
  float lowest, highest;       // of the integers that codes stand for
  float starts[kMostStarts];   // the first scale tried is the largest weight over this; with a minimum, ...
  const StepTable* table;      // null, or what integers are rounded to; a caller fills in the values alone
  const uint8_t* table_codes;  // and its code
};  // ... the part of the range that codes span

struct RoundingTask {
  const RoundingFormat* format;
  const float* weights;     // [rows][inputs]
  int64_t rows, inputs;     // inputs: whole units
  const float* importance;  // [inputs], above 0
  // Of consecutive inputs, each [width][width]: row i has what errors of the inputs before i add to it. None: every
  // weight is rounded by itself.
  const float* const* factors;
  const int64_t* widths;
  int64_t num_factors;
  uint8_t* codes;   // [rows][inputs]
  uint8_t* scales;  // [rows][inputs / group], signed ones in two's complement; null with kHalfScales
  uint8_t* minima;  // the same; null without kByteScales
  uint16_t* d;      // [rows][inputs / unit], float16
  uint16_t* m;      // the same; null without a minimum
  float* errors;    // null, or [rows][inputs]: weights less values
};

struct QuantiseKernels {
  // Floats of scratch memory that `rows` takes for inputs of the widest factor.
  int64_t (*scratch)(int64_t width);
  // Rounds at most kMostTiles * 16 rows, from `begin` on.
  void (*rows)(const RoundingTask& task, int64_t begin, float* scratch);
};

}  // namespace edge_rt

// Rounds all rows in the caller's thread, with the kernels of an instruction set (null: the best). Returns 0; -1: an
// argument is out of range; -2: there is no memory.
EDGE_RT_EXPORT int edge_rt_quantise(const edge_rt::RoundingTask* task, const char* isa);
