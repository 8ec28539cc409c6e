// What the kernels of RowTopK share: their struct, and logits in order.
const int PART = 4096, MOST = 64;
const uint NEGATIVE_INFINITY = 0xff800000u;

struct TopKPart {
  int count;
  float peak;
  float sum;
  float values[MOST];
  int ids[MOST];
};
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Parts { TopKPart at[]; };

struct TopKRows {
  Floats logits;
  Long rows;
  Long width;
  int k;
  Parts parts;
  Ints ids;
  Floats values;
  Floats log_sum_exp;
};
KERNEL(TopKRows)

bool is_number(float value) { return (floatBitsToUint(value) & 0x7fffffffu) <= 0x7f800000u; }

// A logit and its place: the larger logit has the larger y, of equal ones the first the larger x. 0: none, or no number.
uvec2 key_of(float value, int id) {
  if (!is_number(value)) return uvec2(0u);
  const uint bits = value == 0.0 ? 0u : floatBitsToUint(value);  // both zeros are one
  return uvec2(~uint(id), (bits >> 31) != 0u ? ~bits : bits | 0x80000000u);
}
int id_of(uvec2 key) { return int(~key.x); }
bool is_none(uvec2 key) { return (key.x | key.y) == 0u; }
uvec2 larger(uvec2 a, uvec2 b) { return b.y > a.y || (b.y == a.y && b.x > a.x) ? b : a; }

Floats logits_of(int row) { return Floats(advanced(uvec2(args.logits), uint(row), 4u * uint(low(args.width)))); }
int parts_of_row() { return (low(args.width) + PART - 1) / PART; }

// The largest of all threads' keys. All threads of the block call it together.
shared uvec2 keys[THREADS];
shared uvec2 largest[8];
uvec2 largest_of_block(uvec2 key) {
  keys[thread()] = key;
  meet();
  if (thread() < 8) {
    uvec2 best = uvec2(0u);
    for (int i = thread(); i < THREADS; i += 8) best = larger(best, keys[i]);
    largest[thread()] = best;
  }
  meet();
  uvec2 best = largest[0];
  [[unroll]] for (int i = 1; i < 8; ++i) best = larger(best, largest[i]);
  return best;
}
