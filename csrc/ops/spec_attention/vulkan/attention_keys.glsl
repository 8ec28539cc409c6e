// Scores: a thread has one key, and multiplies it with some queries that lie in shared memory: floats
// [queries][padded_dim], or for keys of codes [queries][groups][8] words, then a scale and a sum [queries][groups].

int scale_word(int query, int groups) { return (8 * block.room + query) * groups; }
int sum_word(int query, int groups) { return (9 * block.room + query) * groups; }

void load_queries() {
  const int first = query_index(block.kv, 0) + block.begin;
  if (!has_query_codes()) {
    Words from = Words(advanced(uvec2(args.pass.queries), uint(first), 4u * block.padded_dim));
    for (int i = thread(); i < block.count * block.padded_dim; i += THREADS) words[i] = from.at[i];
    return;
  }
  const int groups = groups_of(block.dim), stride = padded_codes(block.dim) / 4;
  Words from = Words(advanced(uvec2(args.pass.query_codes), uint(first), 4u * stride));
  for (int i = thread(); i < block.count * 8 * groups; i += THREADS) {
    words[i] = from.at[i / (8 * groups) * stride + i % (8 * groups)];
  }
  for (int i = thread(); i < block.count * groups; i += THREADS) {
    words[scale_word(0, groups) + i] = floatBitsToUint(args.pass.query_scales.at[first * groups + i]);
    words[sum_word(0, groups) + i] = uint(args.pass.query_sums.at[first * groups + i]);
  }
}

// Rows of bytes of which every 16th begins on a boundary of 16.
bool are_whole_quads(uvec2 plane, uint row_bytes) { return ((plane.x | row_bytes) & 15u) == 0u; }

// 16 bytes, of which `count`, an even number, exist; the others are 0.
uvec4 load_quad(uvec2 at, bool is_whole, int count) {
  if (is_whole && count >= 16) return Quads(at).at[0];
  Halves halves = Halves(at);
  uvec4 quad = uvec4(0u);
  [[unroll]] for (int i = 0; i < 8; ++i) {
    if (2 * i < count) quad[i / 2] |= uint(halves.at[i]) << 16 * (i % 2);
  }
  return quad;
}
uvec2 behind(uvec2 at, int bytes) { return advanced(at, uint(bytes), 1u); }

int dot_quad(uvec4 key, int word, int dot) {
  [[unroll]] for (int w = 0; w < 4; ++w) dot = dot4(key[w], words[word + w], dot);
  return dot;
}

// Of floats and halves: sums of 16 lanes, then their tree.
void score_floats(Plane keys, int row, int query, int count, out float scores[kMostScored]) {
  const bool is_half = key_coding() == kCodedF16;
  const int bytes = is_half ? 2 : 4;
  const bool is_whole = are_whole_quads(keys.codes, keys.code_bytes);
  const uvec2 from = codes_of(keys, row);
  float lanes[kMostScored][16];
  for (int d = 0; d < block.dim; d += 16) {
    float key[16];
    const int left = bytes * (block.dim - d);
    if (is_half) {
      [[unroll]] for (int i = 0; i < 2; ++i) {
        const uvec4 quad = load_quad(behind(from, 2 * d + 16 * i), is_whole, left - 16 * i);
        [[unroll]] for (int k = 0; k < 8; ++k) key[8 * i + k] = float_of_half(quad[k / 2] >> 16 * (k % 2) & 0xffffu);
      }
    } else {
      [[unroll]] for (int i = 0; i < 4; ++i) {
        const uvec4 quad = load_quad(behind(from, 4 * d + 16 * i), is_whole, left - 16 * i);
        [[unroll]] for (int k = 0; k < 4; ++k) key[4 * i + k] = uintBitsToFloat(quad[k]);
      }
    }
    [[unroll]] for (int i = 0; i < scored_at_once(); ++i) {
      if (i >= count) continue;
      const int word = (query + i) * block.padded_dim + d;
      [[unroll]] for (int l = 0; l < 16; ++l) {
        const float value = uintBitsToFloat(words[word + l]);
        lanes[i][l] = d == 0 ? value * key[l] : fused(value, key[l], lanes[i][l]);
      }
    }
  }
  [[unroll]] for (int i = 0; i < scored_at_once(); ++i) {
    [[unroll]] for (int width = 8; width > 0; width /= 2) {
      [[unroll]] for (int l = 0; l < width; ++l) lanes[i][l] += lanes[i][l + width];
    }
    scores[i] = lanes[i][0];
  }
}

// A group's 32 codes as signed bytes: of `kCodedPairs` less 128.
void load_codes(Plane keys, int row, int group, bool is_whole, bool is_whole_finer, out uvec4 first, out uvec4 second) {
  const uint lower = 0x0f0f0f0fu;
  const uvec2 from = codes_of(keys, row);
  if (key_coding() == kCodedInt8) {
    const int left = block.dim - group * kKvGroup;
    first = load_quad(behind(from, group * kKvGroup), is_whole, left);
    second = load_quad(behind(from, group * kKvGroup + 16), is_whole, left - 16);
    return;
  }
  const uvec4 codes = load_quad(behind(from, 16 * group), is_whole, 16);
  first = codes & lower;
  second = codes >> 4 & lower;
  if (key_coding() == kCodedPairs) {
    const uvec4 finer = load_quad(behind(finer_of(keys, row), 16 * group), is_whole_finer, 16);
    first = (first << 4 | (finer & lower)) ^ 0x80808080u;
    second = (second << 4 | (finer >> 4 & lower)) ^ 0x80808080u;
  }
}

void score_codes(Plane keys, int row, int query, int count, out float scores[kMostScored]) {
  const bool is_whole = are_whole_quads(keys.codes, keys.code_bytes);
  const bool is_whole_finer = are_whole_quads(keys.finer, keys.code_bytes);
  const bool has_minimum = key_coding() != kCodedInt8, is_pair = key_coding() == kCodedPairs;
  Halves levels = Halves(extras_of(keys, row));
  const int groups = groups_of(block.dim);
  [[unroll]] for (int i = 0; i < scored_at_once(); ++i) scores[i] = 0.0;
  for (int g = 0; g < groups; ++g) {
    uvec4 first, second;
    load_codes(keys, row, g, is_whole, is_whole_finer, first, second);
    float scale = float_of_half(uint(levels.at[has_minimum ? 2 * g : g])), minimum = 0.0;
    if (has_minimum) minimum = float_of_half(uint(levels.at[2 * g + 1]));
    if (is_pair) {
      minimum = fused(-scale, 0.5, minimum);
      scale *= 0.0625;
    }
    [[unroll]] for (int i = 0; i < scored_at_once(); ++i) {
      if (i >= count) continue;
      const int word = ((query + i) * groups + g) * 8;
      int dot = dot_quad(second, word + 4, dot_quad(first, word, 0));
      const float query_scale = uintBitsToFloat(words[scale_word(query + i, groups) + g]);
      if (has_minimum) {
        const int sum = int(words[sum_word(query + i, groups) + g]);
        if (is_pair) dot += sum << 7;
        scores[i] = fused(query_scale, fused(scale, float(dot), minimum * float(sum)), scores[i]);
      } else {
        scores[i] = fused(float(dot) * scale, query_scale, scores[i]);
      }
    }
  }
}

// Scores of a row's key and `count` queries from `query` on, at most scored_at_once().
void score_key(Plane keys, int row, int query, int count, out float scores[kMostScored]) {
  if (has_query_codes()) {
    score_codes(keys, row, query, count, scores);
  } else {
    score_floats(keys, row, query, count, scores);
  }
}
