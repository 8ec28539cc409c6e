// Weighted values: a thread has two dimensions of a slice, and adds up its chunk's positions in ascending order. Threads
// whose dimensions do not exist take those of the slice's first, and nobody reads their sums.

// The slice's dimensions of a thread: neighbours, or of codes of 4 bits the two of a byte.
bool has_nibbles() { return value_coding() >= kCodedNibbles; }
ivec2 places() {
  const int l = chunk_lane();
  return has_nibbles() ? l / 16 * kKvGroup + l % 16 + ivec2(0, 16) : 2 * l + ivec2(0, 1);
}

vec2 load_value(Plane values, int row, int first) {
  const uvec2 codes = codes_of(values, row), extras = extras_of(values, row);
  if (value_coding() == kCodedF32) {
    Floats from = Floats(behind(codes, 4 * first));
    return vec2(from.at[0], from.at[1]);
  }
  if (value_coding() == kCodedF16) {
    // Heads are of an even number of dimensions, so that pairs lie on a boundary of 4.
    const uint pair = Words(behind(codes, 2 * first)).at[0];
    return vec2(float_of_half(pair & 0xffffu), float_of_half(pair >> 16));
  }
  if (value_coding() == kCodedInt8) {
    const int pair = int(Halves(behind(codes, first)).at[0]);
    const float scale = float_of_half(uint(Halves(extras).at[first / kKvGroup]));
    return vec2(float(bitfieldExtract(pair, 0, 8)) * scale, float(bitfieldExtract(pair, 8, 8)) * scale);
  }
  const int group = first / kKvGroup, byte = 16 * group + first % kKvGroup;
  Halves levels = Halves(extras);
  const uint code = byte_at(Halves(codes), byte);
  float scale = float_of_half(uint(levels.at[2 * group])), minimum = float_of_half(uint(levels.at[2 * group + 1]));
  ivec2 both = ivec2(code & 15u, code >> 4);
  if (value_coding() == kCodedPairs) {
    const uint finer = byte_at(Halves(finer_of(values, row)), byte);
    both = 16 * both + ivec2(finer & 15u, finer >> 4);
    minimum = fused(-scale, 0.5, minimum);
    scale *= 0.0625;
  }
  return vec2(fused(float(both.x), scale, minimum), fused(float(both.y), scale, minimum));
}

// Rows that are loaded at once.
const int kStep = 4;
int step() { return has_long_fma() ? 1 : kStep; }

vec2 fused_pair(float weight, vec2 value, vec2 sum) {
  return vec2(fused(weight, value.x, sum.x), fused(weight, value.y, sum.y));
}

// Sums of the round's queries: out[i] is that of number now.begin + i.
void weigh_values(Plane values, int start, int slice, Round now, out vec2 outputs[kQueries]) {
  const int wanted = slice + places().x, first = wanted < block.dim ? wanted : slice;
  const ivec2 whole = is_shared(start) ? all_see(start) : now.seen;
  [[unroll]] for (int i = 0; i < weighed_at_once(); ++i) outputs[i] = vec2(0.0);
  if (now.begin >= now.end) return;
  for (int j = now.seen.x / step() * step(); j < now.seen.y; j += step()) {
    vec2 value[kStep];
    [[unroll]] for (int k = 0; k < step(); ++k) value[k] = load_value(values, physical[chunk()][j + k], first);
    const bool is_whole = !has_long_fma() && j >= whole.x && j + kStep <= whole.y;
    [[unroll]] for (int i = 0; i < weighed_at_once(); ++i) {
      const int query = now.begin + i;
      if (query >= now.end) continue;
      const vec4 some = weights[chunk()][query][j / 4];
      if (is_whole) {
        [[unroll]] for (int k = 0; k < kStep; ++k) outputs[i] = fused_pair(some[k], value[k], outputs[i]);
        continue;
      }
      const ivec2 seen = seen_by(positions[query], start);
      [[unroll]] for (int k = 0; k < step(); ++k) {
        if (has(seen, j + k)) outputs[i] = fused_pair(some[step() == 1 ? j % 4 : k], value[k], outputs[i]);
      }
    }
  }
}

// Joins the chunk's outputs of the round's queries to those of chunks before it.
void join_chunk(int slice, Round now, vec2 outputs[kQueries]) {
  [[unroll]] for (int i = 0; i < weighed_at_once(); ++i) {
    const int query = now.begin + i;
    if (query >= now.end || peaks[chunk()][query] == kNoScore) continue;  // not even the sign of a zero changes
    const vec2 joins = factors[chunk()][query];
    [[unroll]] for (int k = 0; k < 2; ++k) {
      const int word = query * kSlice + places()[k];
      words[word] = floatBitsToUint(fused(outputs[i][k], joins.y, uintBitsToFloat(words[word]) * joins.x));
    }
  }
}
