// QuantEmbed: rows of a packed matrix as floats; the matrix may be the one that the LM head multiplies with.
#pragma once

#include "ops/quant_linear/quant_linear.h"

namespace edge_rt {

// Rows of a matrix, checked.
struct EmbedRows {
  PackedWeight weight;
  const int64_t* ids;  // [rows]
  int64_t rows;
  int64_t out_features;  // ids are 0 to out_features - 1
  int64_t features;
  float scale;
  float* y;  // [rows][features]
};

struct QuantEmbedKernels {
  // Writes the first `features` weights of a row, multiplied by `scale`, which rounds once more unless it is 1. A
  // weight is fma(D, q, M) with a minimum, else D * q, or the float itself.
  void (*row)(const PackedWeight& weight, int64_t row, int64_t features, float scale, float* y);
};

}  // namespace edge_rt
