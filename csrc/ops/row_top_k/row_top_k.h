// RowTopK: the k largest logits of every row with their ids, and the row's log-sum-exp, in one pass.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge_rt {

// A part of a row; parts begin at multiples of kTopKPart, so that sums do not depend on who computes them.
constexpr int64_t kTopKPart = 4096;
constexpr int kMaxTopK = 64;

// The largest of a part, descending, equal ones by id; and its sum of exp(logit - peak), added in 16 lanes and a tree.
struct TopKPart {
  int count;
  float peak;
  float sum;
  float values[kMaxTopK];
  int32_t ids[kMaxTopK];
};

// Rows of logits, checked.
struct TopKRows {
  const float* logits;  // [rows][width]
  int64_t rows;
  int64_t width;
  int k;
  TopKPart* parts;     // memory for the parts of all rows
  int32_t* ids;        // [rows][k]
  float* values;       // [rows][k]
  float* log_sum_exp;  // [rows]

  int64_t part_count() const { return (width + kTopKPart - 1) / kTopKPart; }  // of a row
  // Memory that `parts` needs.
  size_t part_bytes() const { return sizeof(TopKPart) * static_cast<size_t>(rows * part_count()); }
};

struct RowTopKKernels {
  // Logits [begin, end) of one row.
  void (*part)(const float* logits, int64_t begin, int64_t end, int k, TopKPart* out);
  // Joins the parts of a row, in order.
  void (*join)(const TopKPart* parts, int64_t count, int k, int32_t* ids, float* values, float* log_sum_exp);
};

}  // namespace edge_rt
