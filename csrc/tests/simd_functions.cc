// Compiled once per instruction set, as kernels/kernels.cc is.
#include "kernels/simd.h"
#include "tests/simd_test.h"

namespace edge_rt {
namespace EDGE_RT_ISA_NAMESPACE {
namespace {

#include "kernels/simd_math.inl"
#include "kernels/simd_rows.inl"

#define EDGE_RT_FLOATS(expression)                                 \
  [](const float* a, const float* b, const float* c, float* out) { \
    const VF x = vf_load(a), y = vf_load(b), z = vf_load(c);       \
    (void)x, (void)y, (void)z;                                     \
    vf_store(out, expression);                                     \
  }
#define EDGE_RT_INTS(expression)                         \
  [](const int32_t* a, const int32_t* b, int32_t* out) { \
    const VI x = vi_load(a), y = vi_load(b);             \
    (void)x, (void)y;                                    \
    vi_store(out, expression);                           \
  }

SimdFunctions float_functions() {
  SimdFunctions f{};
  f.zero = EDGE_RT_FLOATS(vf_zero());
  f.set1 = EDGE_RT_FLOATS(vf_set1(a[0]));
  f.copy = EDGE_RT_FLOATS(x);
  f.add = EDGE_RT_FLOATS(vf_add(x, y));
  f.sub = EDGE_RT_FLOATS(vf_sub(x, y));
  f.mul = EDGE_RT_FLOATS(vf_mul(x, y));
  f.div = EDGE_RT_FLOATS(vf_div(x, y));
  f.fma = EDGE_RT_FLOATS(vf_fma(x, y, z));
  f.fnma = EDGE_RT_FLOATS(vf_fnma(x, y, z));
  f.max = EDGE_RT_FLOATS(vf_max(x, y));
  f.min = EDGE_RT_FLOATS(vf_min(x, y));
  f.where_less = EDGE_RT_FLOATS(vf_where_less(x, y, z, x));
  f.abs = EDGE_RT_FLOATS(vf_abs(x));
  f.neg = EDGE_RT_FLOATS(vf_neg(x));
  f.sqrt = EDGE_RT_FLOATS(vf_sqrt(x));
  f.exp = EDGE_RT_FLOATS(vf_exp(x));
  f.sigmoid = EDGE_RT_FLOATS(vf_sigmoid(x));
  f.silu = EDGE_RT_FLOATS(vf_silu(x));
  f.gelu = EDGE_RT_FLOATS(vf_gelu(x));
  f.tanh = EDGE_RT_FLOATS(vf_tanh(x));
  f.softplus = EDGE_RT_FLOATS(vf_softplus(x));
  f.load_n = [](const float* from, int n, float* out) { vf_store(out, vf_load_n(from, n)); };
  f.store_n = [](float* to, const float* a, int n) { vf_store_n(to, vf_load(a), n); };
  return f;
}

void add_conversions(SimdFunctions& f) {
  f.from_half = [](const uint16_t* a, float* out) { vf_store(out, vf_from_half(a)); };
  f.from_half_n = [](const uint16_t* a, int n, float* out) { vf_store(out, vf_from_half_n(a, n)); };
  f.to_half = [](const float* a, uint16_t* out) { vf_to_half(out, vf_load(a)); };
  f.from_i8 = [](const int8_t* a, float* out) { vf_store(out, vf_from_i8(a)); };
  f.from_i8_n = [](const int8_t* a, int n, float* out) { vf_store(out, vf_from_i8_n(a, n)); };
  f.to_i8 = [](const int32_t* a, int8_t* out) { vf_to_i8(out, vi_load(a)); };
  f.round = [](const float* a, int32_t* out) { vi_store(out, vi_round(vf_load(a))); };
  f.from_i32 = [](const int32_t* a, float* out) { vf_store(out, vf_from_i32(vi_load(a))); };
  f.lookup = [](const StepTable& table, const int32_t* index, float* out) {
    vf_store(out, vf_lookup(table, vi_load(index)));
  };
  f.from_bits = [](const int32_t* a, float* out) { vf_store(out, vf_from_bits(vi_load(a))); };
  f.to_bits = [](const float* a, int32_t* out) { vi_store(out, vi_from_bits(vf_load(a))); };
}

void add_integers(SimdFunctions& f) {
  f.int_zero = EDGE_RT_INTS(vi_zero());
  f.int_set1 = EDGE_RT_INTS(vi_set1(a[0]));
  f.int_copy = EDGE_RT_INTS(x);
  f.int_add = EDGE_RT_INTS(vi_add(x, y));
  f.int_sub = EDGE_RT_INTS(vi_sub(x, y));
  f.shl_1 = EDGE_RT_INTS(vi_shl(x, 1));
  f.shl_8 = EDGE_RT_INTS(vi_shl(x, 8));
  f.shl_23 = EDGE_RT_INTS(vi_shl(x, 23));
  f.dot4 = [](const int32_t* acc, const int8_t* a, const int8_t* b, int32_t* out) {
    vi_store(out, vi_dot4(vi_load(acc), vb_load(a), vb_load(b)));
  };
  f.dot4_set1 = [](const int32_t* acc, const int8_t* a, const int8_t* four, int32_t* out) {
    vi_store(out, vi_dot4(vi_load(acc), vb_load(a), vb_set1_4(four)));
  };
}

#define EDGE_RT_BYTES(expression)                     \
  [](const int8_t* a, const int8_t* b, int8_t* out) { \
    const VB x = vb_load(a), y = vb_load(b);          \
    (void)x, (void)y;                                 \
    vb_store(out, expression);                        \
  }

void add_nibbles(SimdFunctions& f) {
  f.butterfly_1 = EDGE_RT_FLOATS(vf_butterfly<1>(x));
  f.butterfly_2 = EDGE_RT_FLOATS(vf_butterfly<2>(x));
  f.butterfly_4 = EDGE_RT_FLOATS(vf_butterfly<4>(x));
  f.butterfly_8 = EDGE_RT_FLOATS(vf_butterfly<8>(x));
  f.lane_0 = EDGE_RT_FLOATS(vf_lane<0>(x));
  f.lane_6 = EDGE_RT_FLOATS(vf_lane<6>(x));
  f.lane_9 = EDGE_RT_FLOATS(vf_lane<9>(x));
  f.lane_15 = EDGE_RT_FLOATS(vf_lane<15>(x));
  f.from_nibbles = [](const uint8_t* codes, float scale, float minimum, float* out) {
    VF lower, upper;
    vf_from_nibbles(codes, scale, minimum, &lower, &upper);
    vf_store(out, lower);
    vf_store(out + 16, upper);
  };
  f.from_nibble_pairs = [](const uint8_t* codes, const uint8_t* finer, float scale, float minimum, float* out) {
    VF lower, upper;
    vf_from_nibble_pairs(codes, finer, scale, minimum, &lower, &upper);
    vf_store(out, lower);
    vf_store(out + 16, upper);
  };
  f.from_half_pairs = [](const int32_t* words, float* out) {
    VF lower, upper;
    vf_from_half_pairs(vi_load(words), &lower, &upper);
    vf_store(out, lower);
    vf_store(out + 16, upper);
  };
  f.load_split = [](const void* words, int32_t* out) {
    VI even, odd;
    vi_load_split(words, &even, &odd);
    vi_store(out, even);
    vi_store(out + 16, odd);
  };
  f.bytes_copy = EDGE_RT_BYTES(x);
  f.bytes_lower = EDGE_RT_BYTES(vb_lower(x));
  f.bytes_upper = EDGE_RT_BYTES(vb_upper(x));
  f.bytes_join = EDGE_RT_BYTES(vb_join(vb_lower(x), vb_lower(y)));
  f.bytes_flip = EDGE_RT_BYTES(vb_flip(x));
  f.dot4_positive = [](const int32_t* acc, const int8_t* a, const int8_t* b, int32_t* out) {
    vi_store(out, vi_dot4_positive(vi_load(acc), vb_load(a), vb_load(b)));
  };
  f.dot4_ready = [](const int32_t* acc, const int8_t* a, const int8_t* b, int32_t* out) {
    vi_store(out, vi_dot4_ready(vi_load(acc), vb_ready(vb_load(a)), vb_load(b)));
  };
  f.ready_bias = kReadyBias;
}

void add_sums(SimdFunctions& f) {
  f.sum = [](const float* a) { return vf_sum(vf_load(a)); };
  f.hmax = [](const float* a) { return vf_hmax(vf_load(a)); };
  f.int_sum = [](const int32_t* a) { return vi_sum(vi_load(a)); };
  f.word_sum = [](const int32_t* a, const int32_t* b) {
    return vs_total(vs_add(vs_add(vs_zero(), vi_load(a)), vi_load(b)));
  };
  f.sum16 = [](const float* a, float* out) {
    VF v[16];
    for (int j = 0; j < 16; ++j) v[j] = vf_load(a + 16 * j);
    vf_store(out, vf_sum16(v));
  };
  f.int_sum16 = [](const int32_t* a, int32_t* out) {
    VI v[16];
    for (int j = 0; j < 16; ++j) v[j] = vi_load(a + 16 * j);
    vi_store(out, vi_sum16(v));
  };
  f.s_fma = [](float a, float b, float c) { return s_fma(a, b, c); };
  f.s_sqrt = [](float a) { return s_sqrt(a); };
  f.s_exp = [](float a) { return s_exp(a); };
  f.layer_scale = [](const float* a, int n, float eps, float* mean) {
    const LayerScale found = layer_scale(a, n, eps);
    *mean = found.mean;
    return found.scale;
  };
  f.rms_scale = [](const float* a, int n, float eps) {
    prefetch(a);
    return rms_scale(a, n, eps);
  };
}

}  // namespace

SimdFunctions simd_functions();
SimdFunctions simd_functions() {
  SimdFunctions f = float_functions();
  add_conversions(f);
  add_integers(f);
  add_sums(f);
  add_nibbles(f);
  return f;
}

}  // namespace EDGE_RT_ISA_NAMESPACE
}  // namespace edge_rt
