// Scores: a thread has one key, and multiplies it with some queries that lie in shared memory.

// Four words at once, where they lie on their boundary.
struct alignas(16) Quad {
  uint32_t words[4];
};
struct alignas(16) FloatQuad {
  float v[4];
};

EDGE_RT_DEVICE FloatQuad load_floats(const float* p) { return *reinterpret_cast<const FloatQuad*>(p); }

// Rows of bytes of which every 16th begins on a boundary of 16.
EDGE_RT_DEVICE bool are_whole_quads(const uint8_t* plane, int64_t row_bytes) {
  return ((reinterpret_cast<uintptr_t>(plane) | static_cast<uintptr_t>(row_bytes)) & 15) == 0;
}

// 16 bytes, of which `count`, an even number, exist; the others are 0.
EDGE_RT_DEVICE Quad load_quad(const uint8_t* p, bool is_whole, int count) {
  if (is_whole && count >= 16) return *reinterpret_cast<const Quad*>(p);
  Quad out{};
  EDGE_RT_UNROLL(8)
  for (int i = 0; i < 8; ++i) {
    if (2 * i < count) {
      out.words[i / 2] |= static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(p)[i]) << (16 * (i % 2));
    }
  }
  return out;
}

// The queries of a block in shared memory: floats [queries][padded_dim], or for keys of codes [queries][groups][8]
// words, then a scale and a sum [queries][groups].
struct BlockQueries {
  uint32_t* words;
  int room;  // queries that there is room for

  EDGE_RT_DEVICE const float* floats(const AttentionPass& pass, int query) const {
    return reinterpret_cast<const float*>(words) + query * pass.padded_dim;
  }
  EDGE_RT_DEVICE uint32_t* codes(const AttentionPass& pass, int query) const {
    return words + query * pass.groups() * 8;
  }
  EDGE_RT_DEVICE uint32_t* scales(const AttentionPass& pass, int query) const {
    return words + (room * 8 + query) * pass.groups();
  }
  EDGE_RT_DEVICE uint32_t* sums(const AttentionPass& pass, int query) const {
    return words + (room * 9 + query) * pass.groups();
  }
};

template <int Queries>
EDGE_RT_DEVICE void dot_words(const uint32_t (&key)[8], const AttentionPass& pass, const BlockQueries& queries,
                              int first, int group, int (&dots)[Queries]) {
  EDGE_RT_UNROLL(8)
  for (int i = 0; i < Queries; ++i) {
    const Quad* codes = reinterpret_cast<const Quad*>(queries.codes(pass, first + i) + 8 * group);
    const Quad low = codes[0], high = codes[1];
    for (int w = 0; w < 4; ++w) dots[i] = dot4(key[w], low.words[w], dots[i]);
    for (int w = 0; w < 4; ++w) dots[i] = dot4(key[4 + w], high.words[w], dots[i]);
  }
}

// Keys of one format. kQueries are what registers hold sums of; `score` sets the scores of queries [first, first +
// Queries) with the key of a row.
template <KvCoding Coding>
struct Keys;

template <>
struct Keys<kCodedInt8> {
  static constexpr int kQueries = 2;
  const AttentionPass& pass;
  PlaneParts<kCodedInt8> in;
  bool is_whole;

  EDGE_RT_DEVICE Keys(const AttentionPass& of, int kv)
      : pass(of), in(of, 0, kv), is_whole(are_whole_quads(in.codes, in.code_bytes)) {}

  template <int Queries>
  EDGE_RT_DEVICE void score(const BlockQueries& queries, int first, int row, float (&scores)[Queries]) const {
    const uint8_t* codes = in.codes + static_cast<int64_t>(row) * in.code_bytes;
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(in.extras + static_cast<int64_t>(row) * in.extra_bytes);
    for (int i = 0; i < Queries; ++i) scores[i] = 0.0f;
    const int groups = pass.groups();
    EDGE_RT_UNROLL(1)
    for (int g = 0; g < groups; ++g) {
      const int left = pass.head_dim - g * kKvGroup;
      const Quad low = load_quad(codes + g * kKvGroup, is_whole, left);
      const Quad high = load_quad(codes + g * kKvGroup + 16, is_whole, left - 16);
      const uint32_t key[8] = {low.words[0],  low.words[1],  low.words[2],  low.words[3],
                               high.words[0], high.words[1], high.words[2], high.words[3]};
      int dots[Queries] = {};
      dot_words(key, pass, queries, first, g, dots);
      const float scale = float_of_half(scales[g]);
      EDGE_RT_UNROLL(8)
      for (int i = 0; i < Queries; ++i) {
        const float query_scale = float_of_bits(queries.scales(pass, first + i)[g]);
        scores[i] = fma(mul(from_int(dots[i]), scale), query_scale, scores[i]);
      }
    }
  }
};

// Of 4 bits over a minimum, and of 8 that are two codes of 4.
template <KvCoding Coding>
struct CodedKeys {
  static constexpr int kQueries = 2;
  const AttentionPass& pass;
  PlaneParts<Coding> in;
  bool is_whole;

  EDGE_RT_DEVICE CodedKeys(const AttentionPass& of, int kv)
      : pass(of), in(of, 0, kv), is_whole(are_whole_quads(in.codes, in.code_bytes)) {}

  EDGE_RT_DEVICE void load_group(int64_t row, int group, uint32_t (&key)[8]) const {
    constexpr uint32_t kLower = 0x0f0f0f0fu;
    const int64_t at = row * in.code_bytes + 16 * group;
    const Quad codes = load_quad(in.codes + at, is_whole, 16);
    if constexpr (Coding == kCodedPairs) {
      // Less 128: signed bytes.
      const Quad finer = load_quad(in.finer + at, is_whole && (pass.capacity * in.code_bytes & 15) == 0, 16);
      for (int w = 0; w < 4; ++w) {
        key[w] = ((codes.words[w] & kLower) << 4 | (finer.words[w] & kLower)) ^ 0x80808080u;
        key[4 + w] = ((codes.words[w] & ~kLower) | (finer.words[w] >> 4 & kLower)) ^ 0x80808080u;
      }
    } else {
      for (int w = 0; w < 4; ++w) {
        key[w] = codes.words[w] & kLower;
        key[4 + w] = codes.words[w] >> 4 & kLower;
      }
    }
  }

  template <int Queries>
  EDGE_RT_DEVICE void score(const BlockQueries& queries, int first, int row, float (&scores)[Queries]) const {
    const uint16_t* levels = reinterpret_cast<const uint16_t*>(in.extras + static_cast<int64_t>(row) * in.extra_bytes);
    for (int i = 0; i < Queries; ++i) scores[i] = 0.0f;
    const int groups = pass.groups();
    EDGE_RT_UNROLL(1)
    for (int g = 0; g < groups; ++g) {
      uint32_t key[8];
      load_group(row, g, key);
      int dots[Queries] = {};
      dot_words(key, pass, queries, first, g, dots);
      float scale = float_of_half(levels[2 * g]), minimum = float_of_half(levels[2 * g + 1]);
      if constexpr (Coding == kCodedPairs) {
        minimum = fma(-scale, 0.5f, minimum);
        scale = mul(scale, 0.0625f);
      }
      EDGE_RT_UNROLL(8)
      for (int i = 0; i < Queries; ++i) {
        const int sum = static_cast<int>(queries.sums(pass, first + i)[g]);
        // Integers that wrap around: behind the last query they are rubbish, and nobody asks for its score.
        if constexpr (Coding == kCodedPairs) dots[i] = vi_add(dots[i], vi_shl(sum, 7));
        const float below = mul(minimum, from_int(sum));
        const float query_scale = float_of_bits(queries.scales(pass, first + i)[g]);
        scores[i] = fma(query_scale, fma(scale, from_int(dots[i]), below), scores[i]);
      }
    }
  }
};
template <>
struct Keys<kCodedNibbles> : CodedKeys<kCodedNibbles> {
  using CodedKeys::CodedKeys;
};
template <>
struct Keys<kCodedPairs> : CodedKeys<kCodedPairs> {
  using CodedKeys::CodedKeys;
};
template <>
struct Keys<kCodedUpper> : CodedKeys<kCodedUpper> {
  using CodedKeys::CodedKeys;
};

// 16 elements of a key, `count` of which exist.
EDGE_RT_DEVICE void load_elements(const float* row, bool is_whole, int count, float (&out)[16]) {
  EDGE_RT_UNROLL(8)
  for (int i = 0; i < 4; ++i) {
    const Quad quad = load_quad(reinterpret_cast<const uint8_t*>(row + 4 * i), is_whole, 4 * (count - 4 * i));
    EDGE_RT_UNROLL(4)
    for (int k = 0; k < 4; ++k) out[4 * i + k] = float_of_bits(quad.words[k]);
  }
}
EDGE_RT_DEVICE void load_elements(const uint16_t* row, bool is_whole, int count, float (&out)[16]) {
  EDGE_RT_UNROLL(8)
  for (int i = 0; i < 2; ++i) {
    const Quad quad = load_quad(reinterpret_cast<const uint8_t*>(row + 8 * i), is_whole, 2 * (count - 8 * i));
    for (int k = 0; k < 4; ++k) {
      out[8 * i + 2 * k] = float_of_half(static_cast<uint16_t>(quad.words[k]));
      out[8 * i + 2 * k + 1] = float_of_half(static_cast<uint16_t>(quad.words[k] >> 16));
    }
  }
}

// Of floats and halves: sums of 16 lanes, then their tree, by one thread.
template <class Element>
struct FloatKeys {
  static constexpr int kQueries = 1;
  const AttentionPass& pass;
  const Element* rows;
  bool is_whole;

  EDGE_RT_DEVICE FloatKeys(const AttentionPass& of, int kv)
      : pass(of), rows(reinterpret_cast<const Element*>(of.plane(0, kv))),
        is_whole(are_whole_quads(of.plane(0, kv), of.head_dim * static_cast<int64_t>(sizeof(Element)))) {}

  template <int Queries>
  EDGE_RT_DEVICE void score(const BlockQueries& queries, int first, int row, float (&scores)[Queries]) const {
    const Element* from = rows + static_cast<int64_t>(row) * pass.head_dim;
    float sums[Queries][16];
    EDGE_RT_UNROLL(1)
    for (int d = 0; d < pass.head_dim; d += 16) {
      float key[16];
      load_elements(from + d, is_whole, pass.head_dim - d, key);
      EDGE_RT_UNROLL(8)
      for (int i = 0; i < Queries; ++i) {
        const float* query = queries.floats(pass, first + i) + d;
        EDGE_RT_UNROLL(8)
        for (int q = 0; q < 4; ++q) {
          const FloatQuad some = load_floats(query + 4 * q);
          EDGE_RT_UNROLL(4)
          for (int k = 0; k < 4; ++k) {
            float& sum = sums[i][4 * q + k];
            sum = d == 0 ? mul(some.v[k], key[4 * q + k]) : fma(some.v[k], key[4 * q + k], sum);
          }
        }
      }
    }
    EDGE_RT_UNROLL(8)
    for (int i = 0; i < Queries; ++i) {
      EDGE_RT_UNROLL(8)
      for (int half = 8; half > 0; half /= 2) {
        EDGE_RT_UNROLL(8)
        for (int l = 0; l < half; ++l) sums[i][l] = add(sums[i][l], sums[i][l + half]);
      }
      scores[i] = sums[i][0];
    }
  }
};
template <>
struct Keys<kCodedF32> : FloatKeys<float> {
  using FloatKeys::FloatKeys;
};
template <>
struct Keys<kCodedF16> : FloatKeys<uint16_t> {
  using FloatKeys::FloatKeys;
};
