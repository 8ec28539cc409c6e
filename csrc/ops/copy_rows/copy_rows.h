// Rows of floats that are copied on a GPU: what Gather and Concat of ONNX come to.
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

}  // namespace edge_rt
