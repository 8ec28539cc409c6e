// Writes a head to the cache, by one warp, in every format. Groups of kKvGroup elements are taken two at a time: a half
// of the warp has one, and a lane its elements `column` and `column` + 16.

// Where the parts of rows lie in a plane.
template <KvCoding Coding>
struct PlaneParts {
  uint8_t *codes, *finer, *extras;
  int code_bytes, extra_bytes;  // of a row

  EDGE_RT_DEVICE PlaneParts(const AttentionPass& pass, int which, int kv)
      : codes(pass.plane(which, kv)), code_bytes(static_cast<int>(kv_code_bytes(kRow, pass.head_dim))),
        extra_bytes(kRow.bytes_per_group * pass.groups()) {
    finer = codes + pass.capacity * code_bytes;
    extras = codes + pass.capacity * kv_all_code_bytes(kRow, pass.head_dim);
  }

  static constexpr KvRow kRow = kKvRows[Coding];
};

EDGE_RT_DEVICE void append_f32(const AttentionPass& pass, int which, int kv, int64_t at, const float* x) {
  float* row = reinterpret_cast<float*>(pass.plane(which, kv)) + at * pass.head_dim;
  for (int d = lane(); d < pass.head_dim; d += 32) row[d] = x[d];
}

EDGE_RT_DEVICE void append_f16(const AttentionPass& pass, int which, int kv, int64_t at, const float* x) {
  uint16_t* row = reinterpret_cast<uint16_t*>(pass.plane(which, kv)) + at * pass.head_dim;
  for (int d = lane(); d < pass.head_dim; d += 32) row[d] = half_of_float(x[d]);
}

EDGE_RT_DEVICE void append_int8(const AttentionPass& pass, int which, int kv, int64_t at, const float* x) {
  const PlaneParts<kCodedInt8> to(pass, which, kv);
  const int dim = pass.head_dim, groups = pass.groups(), column = vector_lane();
  int8_t* codes = reinterpret_cast<int8_t*>(to.codes) + at * to.code_bytes;
  uint16_t* scales = reinterpret_cast<uint16_t*>(to.extras + at * to.extra_bytes);
  for (int pair = 0; pair < groups; pair += 2) {
    const int group = pair + lane() / 16, d = group * kKvGroup + column;
    const float low = d < dim ? x[d] : 0.0f, high = d + 16 < dim ? x[d + 16] : 0.0f;
    const uint16_t bits = half_of_float(div(vf_hmax(vf_max(vf_abs(low), vf_abs(high))), 127.0f));
    const float scale = float_of_half(bits);
    const auto code = [&](float value) {
      return static_cast<int8_t>(scale > 0 ? round_to_int(clamp_code(div(value, scale), -127.0f, 127.0f)) : 0);
    };
    if (d < dim) codes[d] = code(low);
    if (d + 16 < dim) codes[d + 16] = code(high);
    if (column == 0 && group < groups) scales[group] = bits;
  }
}

// The levels of a group, as halves are stored.
struct CodeLevels {
  uint16_t scale_bits, minimum_bits;
  float scale, minimum;
};

// A lane's elements of a group whose first is x[0]; from `count` on they are like the first. The whole warp calls it.
EDGE_RT_DEVICE CodeLevels load_code_group(const float* x, int count, float* low, float* high) {
  const int column = vector_lane();
  *low = x[column < count ? column : 0];
  *high = x[column + 16 < count ? column + 16 : 0];
  const float largest = vf_hmax(vf_max(*low, *high)), smallest = vf_neg(vf_hmax(vf_max(vf_neg(*low), vf_neg(*high))));
  CodeLevels out;
  out.scale_bits = half_of_float(div(add(largest, -smallest), 15.0f));
  out.minimum_bits = half_of_float(smallest);
  out.scale = float_of_half(out.scale_bits);
  out.minimum = float_of_half(out.minimum_bits);
  return out;
}

// Two codes of a lane as a byte; those from `count` on become 0.
EDGE_RT_DEVICE uint8_t pack_codes(int low, int high, int count) {
  const int column = vector_lane();
  return static_cast<uint8_t>((column < count ? low & 15 : 0) | (column + 16 < count ? high & 15 : 0) << 4);
}

// First and finer code of an element; the finer one stands for its error.
EDGE_RT_DEVICE void code_element(float x, const CodeLevels& levels, int* first, int* finer) {
  *first = round_to_int(clamp_code(div(add(x, -levels.minimum), levels.scale), 0.0f, 15.0f));
  const float left = add(x, -fma(from_int(*first), levels.scale, levels.minimum));
  *finer = round_to_int(clamp_code(div(left, mul(levels.scale, 0.0625f)), -8.0f, 7.0f));
}

template <KvCoding Coding>
EDGE_RT_DEVICE void append_coded(const AttentionPass& pass, int which, int kv, int64_t at, const float* x) {
  const PlaneParts<Coding> to(pass, which, kv);
  const int groups = pass.groups(), column = vector_lane();
  for (int pair = 0; pair < groups; pair += 2) {
    const int wanted = pair + lane() / 16, group = wanted < groups ? wanted : groups - 1;
    const int left = pass.head_dim - group * kKvGroup, count = left < kKvGroup ? left : kKvGroup;
    float low, high;
    const CodeLevels levels = load_code_group(x + group * kKvGroup, count, &low, &high);
    int first[2] = {0, 0}, finer[2] = {0, 0};
    if (levels.scale > 0) {
      code_element(low, levels, &first[0], &finer[0]);
      code_element(high, levels, &first[1], &finer[1]);
    }
    if (wanted != group) continue;
    to.codes[at * to.code_bytes + 16 * group + column] = pack_codes(first[0], first[1], count);
    if constexpr (Coding != kCodedNibbles) {
      to.finer[at * to.code_bytes + 16 * group + column] = pack_codes(finer[0] + 8, finer[1] + 8, count);
    }
    if (column < 2) {
      reinterpret_cast<uint16_t*>(to.extras + at * to.extra_bytes)[2 * group + column] =
          column == 0 ? levels.scale_bits : levels.minimum_bits;
    }
  }
}

// Levels of a key before feedback, and its elements less their group's minimum.
EDGE_RT_DEVICE void load_fed_key(const PlaneParts<kCodedNibbles>& to, const AttentionPass& pass, int64_t at,
                                 RowShared* shared) {
  const int groups = pass.groups(), column = vector_lane();
  for (int pair = 0; pair < groups; pair += 2) {
    const int wanted = pair + lane() / 16, group = wanted < groups ? wanted : groups - 1;
    const int left = pass.head_dim - group * kKvGroup, count = left < kKvGroup ? left : kKvGroup;
    float* x = shared->head + group * kKvGroup;
    float low, high;
    const CodeLevels levels = load_code_group(x, count, &low, &high);  // all lanes have read x
    if (wanted != group) continue;
    if (column < count) x[column] = add(low, -levels.minimum);
    if (column + 16 < count) x[column + 16] = add(high, -levels.minimum);
    if (column == 0) {
      shared->scale[group] = levels.scale;
      shared->inverse[group] = levels.scale > 0 ? div(1.0f, levels.scale) : 0.0f;
      uint16_t* extras = reinterpret_cast<uint16_t*>(to.extras + at * to.extra_bytes) + 2 * group;
      extras[0] = levels.scale_bits;
      extras[1] = levels.minimum_bits;
    }
  }
  warp_barrier();
}

// The code of what is left of an element, as a float.
EDGE_RT_DEVICE float fed_code(float left, float inverse) {
  constexpr float kWhole = 8388608.0f;  // 2^23: floats from here on are integers, so that adding it rounds
  return add(vf_max(vf_min(fma(left, inverse, kWhole), kWhole + 15.0f), kWhole), -kWhole);
}

// Keys of 4 bits whose rounding errors are fed back: a lane has an element of the group that is being rounded, and then
// one of each later group.
EDGE_RT_DEVICE void append_fed_back(const AttentionPass& pass, int kv, int64_t at, RowShared* shared) {
  const PlaneParts<kCodedNibbles> to(pass, 0, kv);
  const int dim = pass.head_dim, groups = pass.groups();
  const float* feedback = pass.key_feedback + static_cast<int64_t>(kv) * dim * dim;
  float* x = shared->head;
  load_fed_key(to, pass, at, shared);
  for (int group = 0; group < groups; ++group) {
    const int begin = group * kKvGroup, count = dim - begin < kKvGroup ? dim - begin : kKvGroup;
    const int mine = begin + lane();
    const float scale = shared->scale[group], inverse = shared->inverse[group];
    float left = lane() < count ? x[mine] : 0.0f;
    for (int i = 0; i < count; ++i) {
      const float error = broadcast(fma(-fed_code(left, inverse), scale, left), i);
      if (lane() == i) shared->errors[i] = error;
      if (lane() > i && lane() < count)
        left = fma(-error, feedback[static_cast<int64_t>(begin + i) * dim + mine], left);
    }
    const int code = round_to_int(fed_code(left, inverse)), other = exchange(code, 16);
    if (lane() < 16) to.codes[at * to.code_bytes + 16 * group + lane()] = pack_codes(code, other, count);
    warp_barrier();
    for (int d = begin + kKvGroup + lane(); d < dim; d += 32) {
      float rest = x[d];
      for (int i = 0; i < kKvGroup; ++i) {
        rest = fma(-shared->errors[i], feedback[static_cast<int64_t>(begin + i) * dim + d], rest);
      }
      x[d] = rest;
    }
  }
}

EDGE_RT_DEVICE void append_key(const AttentionPass& pass, int kv, int64_t at, RowShared* shared) {
  switch (pass.format) {
    case kKvF32: append_f32(pass, 0, kv, at, shared->head); break;
    case kKvF16: append_f16(pass, 0, kv, at, shared->head); break;
    case kKvInt8:
    case kKvK8V4: append_int8(pass, 0, kv, at, shared->head); break;
    case kKvInt4:
      if (pass.key_feedback != nullptr) {
        append_fed_back(pass, kv, at, shared);
      } else {
        append_coded<kCodedNibbles>(pass, 0, kv, at, shared->head);
      }
      break;
    default: append_coded<kCodedPairs>(pass, 0, kv, at, shared->head); break;
  }
}

EDGE_RT_DEVICE void append_value(const RowHead& head, int64_t row, int kv, int64_t at) {
  const AttentionPass& pass = head.pass;
  const int first = pass.values_are_keys ? 0 : pass.kv_heads;
  head.load(pass.keys_of(row) + static_cast<int64_t>(first + kv) * pass.head_dim);
  if (pass.norms_values) head.multiply(rms_scale(head.x, pass.head_dim, pass.epsilon));
  head.clip();
  if (turns_values(pass)) head.hadamard();
  switch (pass.format) {
    case kKvF32: append_f32(pass, 1, kv, at, head.x); break;
    case kKvF16: append_f16(pass, 1, kv, at, head.x); break;
    case kKvInt8: append_int8(pass, 1, kv, at, head.x); break;
    case kKvK8V4:
    case kKvInt4: append_coded<kCodedNibbles>(pass, 1, kv, at, head.x); break;
    default: append_coded<kCodedPairs>(pass, 1, kv, at, head.x); break;
  }
}
