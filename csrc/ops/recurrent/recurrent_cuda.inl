// Kernels of recurrent.h on a GPU; behind gpu/cuda/device.h.

// A pass of an operator with states, with what the host says of it now.
template <class Pass>
EDGE_RT_DEVICE Pass pass_now(Pass pass, const StateSlots& slots) {
  const StateHead& head = *slots.head;
  const int64_t begin = head.index * slots.stride;
  float *const first = slots.first + begin, *const second = slots.second + begin;
  pass.past = head.past;
  pass.certain = head.certain;
  pass.advance_count = head.advance_count;
  pass.read = head.past == 0 ? nullptr : head.slot == 0 ? first : second;
  pass.written = head.slot == 0 ? second : first;
  pass.steps = head.steps();
  return pass;
}

// A block computes so many columns of a head, half a stripe: a thread one of the four running sums of each.
constexpr int kColumns = kStripe / 2;
constexpr int kMatrixThreads = 4 * kColumns;

// The sum of a column, joined as (0 + 1) + (2 + 3).
EDGE_RT_DEVICE float joined_sums(float sum) {
  sum = add(sum, exchange(sum, kColumns));
  return add(sum, exchange(sum, 2 * kColumns));
}

// Computes the block's columns of all rows. `Rows` is like that of matrix_stripe (recurrent_cpu.inl), for one column.
// A thread has every fourth number of a column, in shared memory while rows are certain; states of drafts lie in
// scratch memory. No number is of two threads.
//   Grid: halves of stripes of a head, and heads.
template <class Rows, class Pass>
EDGE_RT_DEVICE void matrix_columns(const MatrixArgs<Pass>& args, float* state) {
  const Pass pass = pass_now(args.pass, args.slots);
  const MatrixShape& shape = pass.shape;
  const int64_t head = block_y(), dim = shape.key_dim, quarter = thread() / kColumns, mine = thread() % kColumns;
  const int64_t in_head = int64_t{block_x()} * kColumns + mine, column = head * shape.value_dim + in_head;
  const int64_t key = shape.key_head_of(head) * dim, floats = dim * kColumns;
  // Of number i of the thread: in a slot, and in shared and scratch memory.
  const int64_t begin =
      (head * shape.stripes() + in_head / kStripe) * shape.stripe_floats() + quarter * kStripe + in_head % kStripe;
  constexpr int64_t kSlotStep = 4 * kStripe;
  float* const levels =
      args.scratch + (head * (shape.value_dim / kColumns) + block_x()) * args.levels * floats + thread();
  float* const own = state + thread();
  for (int64_t i = 0; i < dim / 4; ++i) {
    float s = pass.read != nullptr ? pass.read[begin + i * kSlotStep] : 0.0f;
    for (int64_t t = 0; t < pass.advance_count; ++t) {
      const float *const transition = pass.accepted(t), *const k = transition + shape.value_heads;
      s = fma(k[key + 4 * i + quarter], k[shape.keys() + column], mul(transition[head], s));
    }
    own[i * kMatrixThreads] = s;
  }
  const Rows rows(pass, head, key, column);
  float dot = 0.0f;
  bool has_dot = false;
  for (int64_t row = 0; row < pass.rows; ++row) {
    const StateStep step = pass.steps[row];
    const float* const from = step.from < 0 ? own : levels + step.from * floats;
    float* const to = step.to < 0 ? own : levels + step.to * floats;
    const float *const k = rows.key(row) + quarter, *const q = rows.query(row) + quarter;
    const float decay = rows.decay(row);
    if (Rows::kCorrects && !has_dot) {
      dot = 0.0f;
      for (int64_t i = 0; i < dim / 4; ++i) dot = fma(k[4 * i], from[i * kMatrixThreads], dot);
      dot = joined_sums(dot);
    }
    const float d = rows.d(row, decay, dot);
    if (row >= pass.certain && quarter == 0) {
      pass.transition(pass.written, row - pass.certain)[shape.value_heads + shape.keys() + column] = d;
    }
    has_dot = Rows::kCorrects && step.is_followed;
    const float* const next = rows.key(has_dot ? row + 1 : row) + quarter;
    float o = 0.0f, next_dot = 0.0f;
    for (int64_t i = 0; i < dim / 4; ++i) {
      const float s = fma(k[4 * i], d, mul(decay, from[i * kMatrixThreads]));
      to[i * kMatrixThreads] = s;
      o = fma(q[4 * i], s, o);
      if (has_dot) next_dot = fma(next[4 * i], s, next_dot);
    }
    o = joined_sums(o);
    if (has_dot) dot = joined_sums(next_dot);
    if (quarter == 0) pass.y[row * shape.values() + column] = o;
  }
  for (int64_t i = 0; i < dim / 4; ++i) pass.written[begin + i * kSlotStep] = own[i * kMatrixThreads];
}
