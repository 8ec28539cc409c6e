// Kernels of recurrent.h, of states that are matrices.

EDGE_RT_INLINE VF matrix_joined(const VF sums[4]) { return vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3])); }

// Makes the transition of a row, if it is a draft, of the decay of all V heads and the k of all K heads.
inline void matrix_note(const MatrixPass& pass, int64_t row, const float* decay, const float* k) {
  if (row < pass.certain) return;
  const MatrixShape& shape = pass.shape;
  float* const transition = pass.transition(pass.written, row - pass.certain);
  std::memcpy(transition, decay, static_cast<size_t>(shape.value_heads) * sizeof(float));
  std::memcpy(transition + shape.value_heads, k, static_cast<size_t>(shape.keys()) * sizeof(float));
}

// A transition as a stripe of a head sees it.
struct MatrixTransition {
  const float *k, *d;
  float decay;
};

// Applies transitions, one after the other, to a stripe. Four at a time go through registers.
inline void matrix_advance(const MatrixPass& pass, int64_t head, int64_t stripe, const float* from, float* to) {
  constexpr int64_t kTogether = 4;
  const MatrixShape& shape = pass.shape;
  for (int64_t first = 0; first < pass.advance_count; first += kTogether, from = to) {
    MatrixTransition list[kTogether];
    int64_t count = 0;
    for (; count < kTogether && first + count < pass.advance_count; ++count) {
      const float* const transition = pass.accepted(first + count);
      const float* const k = transition + shape.value_heads;
      list[count] = {k + shape.key_head_of(head) * shape.key_dim,
                     k + shape.keys() + head * shape.value_dim + stripe * kStripe, transition[head]};
    }
    for (int64_t i = 0; i < shape.key_dim; ++i) {
      VF s = vf_load(from + i * kStripe);
      for (int64_t t = 0; t < count; ++t) {
        s = vf_fma(vf_set1(list[t].k[i]), vf_load(list[t].d), vf_mul(vf_set1(list[t].decay), s));
      }
      vf_store(to + i * kStripe, s);
    }
  }
}

// The sum of k S.
inline VF matrix_dot(const float* s, const float* k, int64_t dim) {
  VF sums[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  for (int64_t i = 0; i < dim; i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] = vf_fma(vf_set1(k[i + j]), vf_load(s + (i + j) * kStripe), sums[j]);
  }
  return matrix_joined(sums);
}

// What a row does to a stripe.
struct MatrixRow {
  const float *k, *q;
  VF decay, d;
};

// S after the row, and o. With `next`, the k of the row that follows, its sum with the new S as well: a stripe is then
// read and written once per row.
template <bool has_next>
EDGE_RT_INLINE VF matrix_update(const float* from, float* to, const MatrixRow& row, const float* next, int64_t dim,
                                VF* next_dot) {
  VF o[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()}, dots[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
  for (int64_t i = 0; i < dim; i += 4) {
    for (int j = 0; j < 4; ++j) {
      const VF s = vf_fma(vf_set1(row.k[i + j]), row.d, vf_mul(row.decay, vf_load(from + (i + j) * kStripe)));
      vf_store(to + (i + j) * kStripe, s);
      o[j] = vf_fma(vf_set1(row.q[i + j]), s, o[j]);
      if constexpr (has_next) dots[j] = vf_fma(vf_set1(next[i + j]), s, dots[j]);
    }
  }
  if constexpr (has_next) *next_dot = matrix_joined(dots);
  return matrix_joined(o);
}

// Computes a stripe of all rows. `Rows` knows of a head:
//   kCorrects: whether d depends on the sum of k and the S before the row
//   row(i): k, q and decay of row i; key(i): k alone
//   d(i, decay, dot): d of row i, `dot` being that sum
template <class Rows>
inline void matrix_stripe(const MatrixPass& pass, const Rows& rows, int64_t head, int64_t stripe, float* scratch) {
  const MatrixShape& shape = pass.shape;
  const int64_t dim = shape.key_dim, floats = shape.stripe_floats(), column = head * shape.value_dim + stripe * kStripe;
  const int64_t begin = (head * shape.stripes() + stripe) * floats;
  float* const state = pass.written + begin;
  const float* start = pass.read != nullptr ? pass.read + begin : state;
  if (pass.read == nullptr) std::memset(state, 0, static_cast<size_t>(floats) * sizeof(float));
  if (pass.advance_count > 0) {
    matrix_advance(pass, head, stripe, start, state);
    start = state;
  }
  if (pass.certain == 0 && start != state) {
    std::memcpy(state, start, static_cast<size_t>(floats) * sizeof(float));
    start = state;
  }
  VF dot = vf_zero();
  bool has_dot = false;
  for (int64_t i = 0; i < pass.rows; ++i) {
    const StateStep& step = pass.steps[i];
    const float* const from = i == 0 ? start : step.from < 0 ? state : scratch + step.from * floats;
    float* const to = step.to < 0 ? state : scratch + step.to * floats;
    MatrixRow row = rows.row(i);
    if (Rows::kCorrects && !has_dot) dot = matrix_dot(from, row.k, dim);
    row.d = rows.d(i, row.decay, dot);
    if (i >= pass.certain) {
      float* const transition = pass.transition(pass.written, i - pass.certain);
      vf_store(transition + shape.value_heads + shape.keys() + column, row.d);
    }
    has_dot = Rows::kCorrects && step.is_followed;
    const VF o = has_dot ? matrix_update<true>(from, to, row, rows.key(i + 1), dim, &dot)
                         : matrix_update<false>(from, to, row, nullptr, dim, &dot);
    vf_store(pass.y + i * shape.values() + column, o);
  }
}
