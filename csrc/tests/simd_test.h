// Every function of the 16-lane types as a plain function over arrays, one table per instruction set. So the test
// itself is compiled once, without that set's flags.
#pragma once

#include <cstdint>

#include "kernels/step_table.h"

namespace edge_rt {

struct SimdFunctions {
  // 16 lanes each; functions of fewer operands ignore the rest. set1 takes a[0].
  using Floats = void(const float* a, const float* b, const float* c, float* out);
  using Ints = void(const int32_t* a, const int32_t* b, int32_t* out);

  Floats *zero, *set1, *copy, *add, *sub, *mul, *div, *fma, *fnma, *max, *min, *where_less, *abs, *neg, *sqrt;
  Floats *exp, *sigmoid, *silu, *gelu, *tanh, *softplus;
  Ints *int_zero, *int_set1, *int_copy, *int_add, *int_sub, *shl_1, *shl_8, *shl_23;
  void (*load_n)(const float* from, int n, float* out);
  void (*store_n)(float* to, const float* a, int n);
  void (*from_half)(const uint16_t* a, float* out);
  void (*from_half_n)(const uint16_t* a, int n, float* out);
  void (*to_half)(const float* a, uint16_t* out);
  void (*from_i8)(const int8_t* a, float* out);
  void (*from_i8_n)(const int8_t* a, int n, float* out);
  void (*to_i8)(const int32_t* a, int8_t* out);
  void (*round)(const float* a, int32_t* out);
  void (*from_i32)(const int32_t* a, float* out);
  void (*lookup)(const StepTable& table, const int32_t* index, float* out);
  void (*from_bits)(const int32_t* a, float* out);
  void (*to_bits)(const float* a, int32_t* out);
  float (*sum)(const float* a);
  float (*hmax)(const float* a);
  int32_t (*int_sum)(const int32_t* a);
  uint64_t (*word_sum)(const int32_t* a, const int32_t* b);
  void (*sum16)(const float* a /* 16 vectors */, float* out);
  void (*int_sum16)(const int32_t* a /* 16 vectors */, int32_t* out);
  void (*dot4)(const int32_t* acc, const int8_t* a /* 64 */, const int8_t* b /* 64 */, int32_t* out);
  void (*dot4_set1)(const int32_t* acc, const int8_t* a /* 64 */, const int8_t* four, int32_t* out);
  Floats *butterfly_1, *butterfly_2, *butterfly_4, *butterfly_8;
  Floats *lane_0, *lane_6, *lane_9, *lane_15;
  // 16 bytes of two codes each, to 16 floats and 16 floats.
  void (*from_nibbles)(const uint8_t* codes, float scale, float minimum, float* out);
  void (*from_nibble_pairs)(const uint8_t* codes, const uint8_t* finer, float scale, float minimum, float* out);
  void (*from_half_pairs)(const int32_t* words, float* out);
  void (*load_split)(const void* words /* 32 */, int32_t* out);
  using Bytes = void(const int8_t* a, const int8_t* b, int8_t* out);
  Bytes *bytes_copy, *bytes_lower, *bytes_upper, *bytes_join, *bytes_flip;
  void (*dot4_positive)(const int32_t* acc, const int8_t* a, const int8_t* b, int32_t* out);
  void (*dot4_ready)(const int32_t* acc, const int8_t* a, const int8_t* b, int32_t* out);
  int32_t ready_bias;
  float (*s_fma)(float a, float b, float c);
  float (*s_sqrt)(float a);
  float (*s_exp)(float a);
  float (*rms_scale)(const float* a, int n, float eps);
  float (*layer_scale)(const float* a, int n, float eps, float* mean);
};

// What 4-bit codes need.
void check_nibbles(const SimdFunctions& functions);
// What norms need; bits are those of scalar code.
void check_norms(const SimdFunctions& functions, const SimdFunctions& scalar);

}  // namespace edge_rt
