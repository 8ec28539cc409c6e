// Rows of floats that are copied or multiplied on a GPU: what Gather, Concat, Split and Mul of ONNX come to.
#pragma once

#include <cstdint>

namespace edge_rt {

// Row r of `to` is row r of `from`; or with ids, of which every matrix of `length` rows in `from` has `count`, row
// ids[r % count] of matrix r / count, counted from the end where it is negative.
struct CopyRows {
  const float* from;
  const int64_t* ids;  // [count], or nullptr
  int64_t count, length;
  int64_t rows, width;
  float* to;
  int64_t stride;  // from one row of `to` to the next
};

constexpr int kSplitParts = 16;  // of one launch

// Row r of part p is `width` numbers of row r of `from`, behind those of the parts before it.
struct SplitRows {
  const float* from;
  int64_t stride;  // from one row of `from` to the next
  int64_t rows, width, parts;
  float* to[kSplitParts];
};

// y is x times one number.
struct ScaleRows {
  const float* x;
  const float* factor;  // [1]
  int64_t rows, width;
  float* y;
};

}  // namespace edge_rt
