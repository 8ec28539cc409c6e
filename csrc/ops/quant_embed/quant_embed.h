// QuantEmbed: rows of a packed matrix as floats; the matrix may be the one that the LM head multiplies with.
#pragma once

#include "ops/quant_linear/quant_linear.h"

namespace edge_rt {

struct QuantEmbedKernels {
  // Writes the first `features` weights of a row: w4m fma(d, q, m), w4 d * (q - 8), w8 d * q, else the float itself.
  void (*row)(const PackedWeight& weight, int64_t row, int64_t features, float* y);
};

}  // namespace edge_rt
