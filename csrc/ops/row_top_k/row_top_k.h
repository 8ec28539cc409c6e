// RowTopK: the k largest logits of every row with their ids, and the row's log-sum-exp, in one pass.
#pragma once

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

struct RowTopKKernels {
  // Logits [begin, end) of one row.
  void (*part)(const float* logits, int64_t begin, int64_t end, int k, TopKPart* out);
  // Joins the parts of a row, in order.
  void (*join)(const TopKPart* parts, int64_t count, int k, int32_t* ids, float* values, float* log_sum_exp);
};

}  // namespace edge_rt
