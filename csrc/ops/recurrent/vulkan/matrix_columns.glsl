// The columns of a head's state (recurrent.h); behind recurrent_pass.glsl, for blocks of THREADS = 4 * COLUMNS. The
// kernel has for a column, each of the pass's rows:
//   int key_at(int row), query_at(int row)    where k and q of the head begin in keys_of_pass
//   float decay_of(int row)
//   float d_of(int row, float decay, float dot)
// and CORRECTS, whether d takes `dot`, the sum of k S.

// A block computes so many columns of a head, half a stripe: a thread one of the four running sums of each.
const int STRIPE = 16, COLUMNS = 8;

// A thread has every fourth number of a column, as long as rows are certain: in shared memory, whose size is chosen by
// that of heads (matrix_choices in recurrent_gpu.h), or where they do not fit in the slot that is written. States of
// drafts lie in scratch memory. No number is of two threads.
const bool IS_SHARED = (choices & 4u) == 0u;
const int KEPT = IS_SHARED ? ((choices & 2u) == 0u ? 32 : 64) : 1;
shared float state[KEPT * THREADS];
shared float sums_of_block[2 * THREADS];

// The block's half of a stripe, and the thread's column in it.
int head_of_block() { return block_y(); }
int quarter() { return thread() / COLUMNS; }
int column_in_head() { return block_x() * COLUMNS + thread() % COLUMNS; }
int column_of_row() { return head_of_block() * low(args.pass.shape.value_dim) + column_in_head(); }
int keys() { return low(args.pass.shape.key_heads) * low(args.pass.shape.key_dim); }
int values() { return low(args.pass.shape.value_heads) * low(args.pass.shape.value_dim); }
int first_key() {
  const int key_heads = low(args.pass.shape.key_heads), value_heads = low(args.pass.shape.value_heads);
  const bool is_tiled = args.pass.shape.is_tiled != 0;
  const int key_head = is_tiled ? head_of_block() % key_heads : head_of_block() / (value_heads / key_heads);
  return key_head * low(args.pass.shape.key_dim);
}

// Numbers of the thread's column: at `at` + i * `step` of memory, or in shared memory.
struct Numbers {
  bool is_shared;
  uvec2 at;
  int first, step;
};
float number(Numbers from, int i) {
  return IS_SHARED && from.is_shared ? state[i * THREADS + thread()] : Floats(from.at).at[from.first + i * from.step];
}
void put_number(Numbers to, int i, float value) {
  if (IS_SHARED && to.is_shared) {
    state[i * THREADS + thread()] = value;
  } else {
    Floats(to.at).at[to.first + i * to.step] = value;
  }
}

Numbers in_slot(Floats slot) {
  const int key_dim = low(args.pass.shape.key_dim), stripes = low(args.pass.shape.value_dim) / STRIPE;
  const int stripe = head_of_block() * stripes + column_in_head() / STRIPE;
  return Numbers(false, uvec2(slot), stripe * key_dim * STRIPE + quarter() * STRIPE + column_in_head() % STRIPE, 4 * STRIPE);
}

Numbers in_level(int level, Numbers own) {
  if (level < 0) return own;
  const uint blocks = uint(low(args.pass.shape.value_dim) / COLUMNS), floats = uint(low(args.pass.shape.key_dim) * COLUMNS);
  const uint number_of_block = uint(head_of_block()) * blocks + uint(block_x());
  const uvec2 levels = advanced(uvec2(args.scratch), number_of_block, 4u * floats * uint(low(args.levels)));
  return Numbers(false, advanced(levels, uint(level), 4u * floats), thread(), THREADS);
}

// The totals of a column, of two sums, each joined as (0 + 1) + (2 + 3).
vec2 joined_sums(float a, float b) {
  sums_of_block[thread()] = a;
  sums_of_block[THREADS + thread()] = b;
  meet();
  float totals[2];
  [[unroll]] for (int i = 0; i < 2; ++i) {
    const int first = i * THREADS + thread() % COLUMNS;
    totals[i] = (sums_of_block[first] + sums_of_block[first + COLUMNS]) +
                (sums_of_block[first + 2 * COLUMNS] + sums_of_block[first + 3 * COLUMNS]);
  }
  meet();
  return vec2(totals[0], totals[1]);
}

// The states that rows of the pass start from.
void begin_columns(Numbers own) {
  StateHead head = args.slots.head;
  const int key = first_key(), value_heads = low(args.pass.shape.value_heads), count = low(args.pass.shape.key_dim) / 4;
  const bool has_text = head.past != 0;
  const Numbers before = in_slot(read_slot());
  for (int i = 0; i < count; ++i) put_number(own, i, has_text ? number(before, i) : 0.0);
  for (int t = 0; t < head.advance_count; ++t) {
    Floats transition = accepted_transition(t);
    const float decay = transition.at[head_of_block()], d = transition.at[value_heads + keys() + column_of_row()];
    [[dont_unroll]] for (int i = 0; i < count; ++i) {
      const float k = transition.at[value_heads + key + 4 * i + quarter()];
      put_number(own, i, fused(k, d, decay * number(own, i)));
    }
  }
}

// Computes the block's columns of all rows. Grid: halves of stripes of a head, and heads.
void compute_columns(Floats keys_of_pass) {
  StateHead head = args.slots.head;
  const int count = low(args.pass.shape.key_dim) / 4, rows = low(args.pass.rows), column = column_of_row();
  const int value_heads = low(args.pass.shape.value_heads), certain = head.certain;
  Floats y = args.pass.y, written = written_slot();
  Numbers own = in_slot(written);
  own.is_shared = IS_SHARED;
  begin_columns(own);
  float dot = 0.0;
  bool has_dot = false;
  for (int row = 0; row < rows; ++row) {
    const StateStep step = head.steps[row];
    const Numbers from = in_level(step.from, own), to = in_level(step.to, own);
    const int k = key_at(row) + quarter(), q = query_at(row) + quarter();
    const float decay = decay_of(row);
    if (CORRECTS && !has_dot) {
      dot = 0.0;
      [[dont_unroll]] for (int i = 0; i < count; ++i) dot = fused(keys_of_pass.at[k + 4 * i], number(from, i), dot);
      dot = joined_sums(dot, 0.0).x;
    }
    const float d = d_of(row, decay, dot);
    if (row >= certain && quarter() == 0) {
      transition_of(written, row - certain).at[value_heads + keys() + column] = d;
    }
    has_dot = CORRECTS && step.is_followed != 0;
    const int next = (has_dot ? key_at(row + 1) : key_at(row)) + quarter();
    float o = 0.0, next_dot = 0.0;
    [[dont_unroll]] for (int i = 0; i < count; ++i) {
      const float s = fused(keys_of_pass.at[k + 4 * i], d, decay * number(from, i));
      put_number(to, i, s);
      o = fused(keys_of_pass.at[q + 4 * i], s, o);
      if (has_dot) next_dot = fused(keys_of_pass.at[next + 4 * i], s, next_dot);
    }
    const vec2 totals = joined_sums(o, next_dot);
    dot = totals.y;
    if (quarter() == 0) y.at[row * values() + column] = totals.x;
  }
  if (!IS_SHARED) return;
  const Numbers left = in_slot(written);
  for (int i = 0; i < count; ++i) put_number(left, i, number(own, i));
}
