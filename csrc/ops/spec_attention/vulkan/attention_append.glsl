// Rounds a head that lies in shared memory, and writes it to scratch memory or to the cache, by the whole block. It has
// met behind whoever wrote the head.

// Of groups of kKvGroup elements: what codes are multiplied by, and what is added.
shared float scales[kMaxGroups], minimums[kMaxGroups], inverses[kMaxGroups];
shared int code_sums[kMaxGroups];
shared float errors[2];

float clamp_code(float code, float least, float most) { return vf_max(least, vf_min(most, code)); }
// 0 behind the head.
float element(int d) { return d < args.pass.head_dim ? x[d] : 0.0; }

float largest_of_group(int group) {
  float largest = 0.0;
  for (int i = 0; i < kKvGroup; ++i) largest = vf_max(largest, vf_abs(element(group * kKvGroup + i)));
  return largest;
}

// To int8, like the activations of QuantLinear; a thread has four elements.
void round_query(int query) {
  const int dim = args.pass.head_dim, groups = groups_of(dim);
  if (thread() < groups) {
    scales[thread()] = largest_of_group(thread());
    code_sums[thread()] = 0;
  }
  meet();
  Words to = Words(advanced(uvec2(args.pass.query_codes), uint(query), uint(padded_codes(dim))));
  for (int word = thread(); word < 8 * groups; word += THREADS) {
    const float largest = scales[word / 8], inverse = largest > 0.0 ? div_exact(127.0, largest) : 0.0;
    uint codes = 0u;
    int sum = 0;
    for (int i = 0; i < 4; ++i) {
      const int code = vi_round(clamp_code(element(4 * word + i) * inverse, -127.0, 127.0));
      codes |= uint(code & 255) << 8 * i;
      sum += code;
    }
    to.at[word] = codes;
    atomicAdd(code_sums[word / 8], sum);
  }
  meet();
  if (thread() < groups) {
    args.pass.query_scales.at[query * groups + thread()] = div_exact(scales[thread()], 127.0);
    args.pass.query_sums.at[query * groups + thread()] = code_sums[thread()];
  }
}

void append_int8(Plane plane, int place) {
  const int dim = args.pass.head_dim;
  if (thread() < groups_of(dim)) {
    const uint bits = half_of_float(div_exact(largest_of_group(thread()), 127.0));
    Halves(extras_of(plane, place)).at[thread()] = uint16_t(bits);
    scales[thread()] = float_of_half(bits);
  }
  meet();
  // Two codes a thread: heads are of an even number of dimensions.
  Halves codes = Halves(codes_of(plane, place));
  for (int i = thread(); i < dim / 2; i += THREADS) {
    const float scale = scales[2 * i / kKvGroup];
    uint pair = 0u;
    for (int high = 0; high < 2 && scale > 0.0; ++high) {
      const int code = vi_round(clamp_code(div_exact(x[2 * i + high], scale), -127.0, 127.0));
      pair |= (uint(code) & 0xffu) << 8 * high;
    }
    codes.at[i] = uint16_t(pair);
  }
}

// The largest element of a group times `sign`: of equal ones the last in the order in which vectors are joined, which
// decides on the sign of a zero. Elements behind the head are like the group's first.
float largest_signed(int group, float sign) {
  const int begin = group * kKvGroup, count = min(args.pass.head_dim - begin, kKvGroup);
  float largest[16];
  [[unroll]] for (int i = 0; i < 16; ++i) {
    largest[i] = vf_max(sign * x[begin + (i < count ? i : 0)], sign * x[begin + (i + 16 < count ? i + 16 : 0)]);
  }
  [[unroll]] for (int width = 8; width > 0; width /= 2) {
    [[unroll]] for (int i = 0; i < width; ++i) largest[i] = vf_max(largest[i], largest[i + width]);
  }
  return largest[0];
}

// The levels of all groups, as they are stored; the block meets behind it.
void write_levels(Plane plane, int place) {
  const int group = thread();
  if (group < groups_of(args.pass.head_dim)) {
    const float largest = largest_signed(group, 1.0), smallest = -largest_signed(group, -1.0);
    const uint scale = half_of_float(div_exact(largest - smallest, 15.0)), minimum = half_of_float(smallest);
    Halves to = Halves(extras_of(plane, place));
    to.at[2 * group] = uint16_t(scale);
    to.at[2 * group + 1] = uint16_t(minimum);
    scales[group] = float_of_half(scale);
    minimums[group] = float_of_half(minimum);
  }
  meet();
}

// Of the four elements in a pair of bytes, from the lowest bits on.
int element_of_pair(int pair, int part) {
  return pair / 8 * kKvGroup + 2 * (pair % 8) + part / 2 + 16 * (part % 2);
}

// First and finer code of an element; the finer one stands for its error.
ivec2 codes_of_element(int d) {
  const float scale = scales[d / kKvGroup], minimum = minimums[d / kKvGroup];
  if (d >= args.pass.head_dim) return ivec2(0);
  if (!(scale > 0.0)) return ivec2(0, 8);
  const int first = vi_round(clamp_code(div_exact(x[d] - minimum, scale), 0.0, 15.0));
  const float left = x[d] - fused(float(first), scale, minimum);
  return ivec2(first, 8 + vi_round(clamp_code(div_exact(left, scale * 0.0625), -8.0, 7.0)));
}

// A thread has two bytes of a group, each of elements `column` and `column` + 16.
void append_coded(Plane plane, bool has_finer, int place) {
  const int groups = groups_of(args.pass.head_dim);
  write_levels(plane, place);
  Halves codes = Halves(codes_of(plane, place)), finer = Halves(finer_of(plane, place));
  for (int i = thread(); i < 8 * groups; i += THREADS) {
    ivec2 both = ivec2(0);
    for (int part = 0; part < 4; ++part) {
      both |= codes_of_element(element_of_pair(i, part)) << 4 * part;
    }
    codes.at[i] = uint16_t(uint(both.x));
    if (has_finer) finer.at[i] = uint16_t(uint(both.y));
  }
}

// The code of what is left of an element, as a float.
float fed_code(float left, float inverse) {
  const float whole = 8388608.0;  // 2^23: floats from here on are integers, so that adding it rounds
  return vf_max(vf_min(fused(left, inverse, whole), whole + 15.0), whole) - whole;
}

// Keys of 4 bits whose rounding errors are fed back, element by element: a thread has every THREADS-th.
void append_fed_back(Plane plane, int kv, int place) {
  const int dim = args.pass.head_dim, groups = groups_of(dim);
  write_levels(plane, place);
  for (int d = thread(); d < dim; d += THREADS) x[d] -= minimums[d / kKvGroup];
  if (thread() < groups) inverses[thread()] = scales[thread()] > 0.0 ? div_exact(1.0, scales[thread()]) : 0.0;
  meet();
  const uvec2 feedback = advanced(uvec2(args.pass.key_feedback), uint(kv), 4u * dim * dim);
  for (int i = 0; i < dim; ++i) {
    if (thread() == i % THREADS) {
      const float code = fed_code(x[i], inverses[i / kKvGroup]);
      errors[i % 2] = fused(-code, scales[i / kKvGroup], x[i]);
      x[i] = code;
    }
    meet();
    Floats row = Floats(advanced(feedback, uint(i), 4u * dim));
    const float error = -errors[i % 2];
    for (int d = i / THREADS * THREADS + thread(); d < dim; d += THREADS) {
      if (d > i) x[d] = fused(error, row.at[d], x[d]);
    }
  }
  meet();
  Halves codes = Halves(codes_of(plane, place));
  for (int i = thread(); i < 8 * groups; i += THREADS) {
    uint both = 0u;
    for (int part = 0; part < 4; ++part) both |= uint(element(element_of_pair(i, part))) << 4 * part;
    codes.at[i] = uint16_t(both);
  }
}

// A key or a value of a kv head.
void append_head(bool is_key, int kv, int place) {
  const int coding = is_key ? key_coding() : value_coding(), dim = args.pass.head_dim;
  Plane plane = plane_of(is_key, kv);
  if (coding == kCodedF32) {
    Floats row = Floats(codes_of(plane, place));
    for (int d = thread(); d < dim; d += THREADS) row.at[d] = x[d];
  } else if (coding == kCodedF16) {
    Halves row = Halves(codes_of(plane, place));
    for (int d = thread(); d < dim; d += THREADS) row.at[d] = uint16_t(half_of_float(x[d]));
  } else if (coding == kCodedInt8) {
    append_int8(plane, place);
  } else if (coding == kCodedNibbles && is_key && !is_null(uvec2(args.pass.key_feedback))) {
    append_fed_back(plane, kv, place);
  } else {
    append_coded(plane, coding != kCodedNibbles, place);
  }
}
