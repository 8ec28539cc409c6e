// What sampling computes with vectors. Weights are whole numbers, so their sums are exact in any order.
#pragma once

#include <cstdint>

namespace edge_rt {

// The weight of the largest score; a weight is exp((score - largest) / temperature), rounded to a whole part of this.
constexpr int32_t kWholeWeight = 1 << 30;
// Scores that are added up together; a row is cut into such blocks, the last one may be shorter.
constexpr int64_t kWeightBlock = 256;

struct BlockWeights {
  uint64_t sum;
  int32_t most;
};

// Sums of a block in 16 lanes and a tree: of weight times its logarithm, both as floats; and of the differences from
// the largest score and their squares, without scores of minus infinity.
struct BlockMoments {
  float information;
  float count, sum, squares;
};

// Of an instruction set. `scale` is 1 / temperature, `peak` the largest score of the row.
struct SamplingKernels {
  // The largest score; *has_wrong: one is no number or plus infinity.
  float (*peak)(const float* scores, int64_t count, bool* has_wrong);
  void (*blocks)(const float* scores, int64_t count, float peak, float scale, BlockWeights* blocks);
  void (*moments)(const float* scores, int64_t count, float peak, float scale, BlockMoments* blocks);
  // The weights themselves, of at most a block.
  void (*weights)(const float* scores, int64_t count, float peak, float scale, int32_t* weights);
};

}  // namespace edge_rt
