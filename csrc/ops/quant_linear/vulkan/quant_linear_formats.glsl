// Formats of weights, as weight_format.h has them. A format is a number that is known when a device compiles a kernel,
// so that all but its own code goes; sets of formats have a bit for each.

const uint W4M = 1u << 0, W4 = 1u << 1, W8 = 1u << 2, F16 = 1u << 3, F32 = 1u << 4, W5M = 1u << 5, W5 = 1u << 6,
           W4K = 1u << 7, W5K = 1u << 8, W6K = 1u << 9, W3K = 1u << 10, W2K = 1u << 11, T4 = 1u << 12, T4K = 1u << 13,
           MX4 = 1u << 14, BF16 = 1u << 15, W4Z32 = 1u << 16, W4Z64 = 1u << 17, W4Z128 = 1u << 18, W8N = 1u << 19,
           W8N_UPPER = 1u << 20, NV4 = 1u << 21;
const uint ALL_FORMATS = (1u << 22) - 1u;

// Kinds of codes; those of w4m are what no other set has.
const uint WITH_FLOATS = F16 | F32 | BF16, WITH_BYTES = W8, WITH_FIVE_BITS = W5M | W5 | W5K, WITH_SIX_BITS = W6K,
           WITH_THREE_BITS = W3K, WITH_TWO_BITS = W2K, WITH_TABLE = T4 | T4K | MX4 | NV4, WITH_DOUBLED_TABLE = MX4 | NV4,
           WITH_FINER = W8N;
// Kinds of scales; others are d alone.
const uint SCALED_BY_BYTES = W4K | W5K, SCALED_BY_SIGNED_BYTES = W6K | W3K | T4K, SCALED_BY_NIBBLES = W2K,
           SCALED_BY_EXPONENTS = MX4, SCALED_BY_FLOATS = NV4, WITH_ZERO_POINTS = W4Z32 | W4Z64 | W4Z128;
const uint WITH_MINIMA = W4M | W5M | W4K | W5K | W2K | W8N | W8N_UPPER;
const uint WITH_HALF_BLOCKS = W6K | W3K | W2K | NV4;  // two groups a block

bool is_in(uint set, int format) { return (set >> uint(format) & 1u) != 0u; }

// The format whose kernels read units of a format.
int read_as(int format) { return format == 20 ? 0 : format; }

// Of a unit: its blocks are 2^this.
int unit_shift(int format) {
  if (is_in(W4K | W5K | W6K | W3K | W2K | T4K, format)) return 3;
  return is_in(W4Z128, format) ? 2 : is_in(W4Z64 | NV4, format) ? 1 : 0;
}
// Groups of a block are 2^this.
int group_shift(int format) { return is_in(WITH_HALF_BLOCKS, format) ? 1 : 0; }

// Codes with an offset of half their range are multiplied as signed bytes: as their highest bits, of which the first
// one is turned over, they are 2^shift times too large. 0: other codes.
int signed_shift(int format) {
  return is_in(W4, format) ? 4 : is_in(W5, format) ? 3 : is_in(W6K, format) ? 2 : is_in(W3K, format) ? 5 : 0;
}

// Bytes of a block's codes.
int code_bytes(int format) {
  if (is_in(WITH_FLOATS, format)) return BLOCK * TILE_ROWS * (is_in(F32, format) ? 4 : 2);
  if (is_in(WITH_BYTES, format)) return 512;
  if (is_in(WITH_FIVE_BITS, format)) return 320;
  if (is_in(WITH_SIX_BITS, format)) return 384;
  if (is_in(WITH_THREE_BITS, format)) return 192;
  return is_in(WITH_TWO_BITS, format) ? 128 : 256;
}

// Where the parts of a unit begin, in bytes, as in make_unit_layout.
int scales_at(int format) { return code_bytes(format) << unit_shift(format); }
int minima_at(int format) {
  const uint with_bytes = SCALED_BY_BYTES | SCALED_BY_SIGNED_BYTES | SCALED_BY_NIBBLES | SCALED_BY_EXPONENTS |
                          SCALED_BY_FLOATS;
  const int groups = TILE_ROWS << unit_shift(format) + group_shift(format);
  return scales_at(format) + (is_in(WITH_ZERO_POINTS, format) ? TILE_ROWS : is_in(with_bytes, format) ? groups : 0);
}
int d_at(int format) {
  return minima_at(format) + (is_in(SCALED_BY_BYTES, format) ? TILE_ROWS << unit_shift(format) : 0);
}
int m_at(int format) {
  if (is_in(SCALED_BY_FLOATS, format)) return d_at(format) + 4 * TILE_ROWS;
  return d_at(format) + (is_in(WITH_FLOATS | SCALED_BY_EXPONENTS, format) ? 0 : 2 * TILE_ROWS);
}
int unit_bytes(int format) { return m_at(format) + (is_in(WITH_MINIMA, format) ? 2 * TILE_ROWS : 0); }
int finer_bytes(int format) { return is_in(W8N | W8N_UPPER, format) ? BLOCK * TILE_ROWS / 2 : 0; }

// Weights of formats with a table, four a word: IQ4_NL's, and MXFP4's, which are doubled.
const uvec4 TABLES[2] = {uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u),
                         uvec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu)};

uint table_byte(int table, uint place) { return TABLES[table][place >> 2] >> 8u * (place & 3u) & 0xffu; }

// An exponent as 2^(e - 128), which is no normal number for the smallest two.
float exponent_scale(uint e) { return uintBitsToFloat(e < 2u ? 0x00200000u << e : e - 1u << 23); }
// Of a float of 8 bits, whose sign is not read; 2^8 times as large.
float small_float(uint e) { return float_of_half((e & 0x7fu) << 7); }

// Scale D and minimum M of a group, of two rows.
struct GroupScale {
  vec2 d;
  vec2 minimum;
};

// What is loaded of a group's scales for two rows, each in its lower bits: halves of d and m, bytes.
struct ScaleWords {
  uint d, m, scales, minima;
};

vec2 two_halves(uint word) { return vec2(float_of_half(word & 0xffffu), float_of_half(word >> 16)); }
vec2 two_bytes(uint word) { return vec2(float(word & 0xffu), float(word >> 8 & 0xffu)); }
vec2 two_signed_bytes(uint word) {
  return vec2(float(bitfieldExtract(int(word), 0, 8)), float(bitfieldExtract(int(word), 8, 8)));
}

// Group number `index` of the unit that begins at byte `unit` of a tile; rows 2 pair and 2 pair + 1.
ScaleWords load_scales(uvec2 tile, int format, int unit, int index, int pair) {
  ScaleWords found = ScaleWords(0u, 0u, 0u, 0u);
  const int bytes = 16 * index + 2 * pair;
  if (is_in(WITH_ZERO_POINTS, format)) {
    found.scales = uint(Halves(tile).at[(unit + scales_at(format) + 2 * pair) >> 1]);
  } else if (minima_at(format) != scales_at(format)) {
    found.scales = uint(Halves(tile).at[(unit + scales_at(format) + bytes) >> 1]);
  }
  if (is_in(SCALED_BY_BYTES, format)) found.minima = uint(Halves(tile).at[(unit + minima_at(format) + bytes) >> 1]);
  if (!is_in(SCALED_BY_EXPONENTS | SCALED_BY_FLOATS, format)) {
    found.d = Words(tile).at[(unit + d_at(format) + 4 * pair) >> 2];
  }
  if (is_in(WITH_MINIMA, format)) found.m = Words(tile).at[(unit + m_at(format) + 4 * pair) >> 2];
  return found;
}

GroupScale group_scale(int format, ScaleWords from) {
  const vec2 none = vec2(0.0);
  if (is_in(SCALED_BY_EXPONENTS, format)) {
    return GroupScale(vec2(exponent_scale(from.scales & 0xffu), exponent_scale(from.scales >> 8)), none);
  }
  if (is_in(SCALED_BY_FLOATS, format)) {
    return GroupScale(vec2(small_float(from.scales), small_float(from.scales >> 8)), none);
  }
  vec2 d = two_halves(from.d), minimum = none;
  if (is_in(WITH_MINIMA, format)) minimum = two_halves(from.m);
  if (is_in(SCALED_BY_BYTES, format)) {
    d = d * two_bytes(from.scales);
    minimum = -minimum * two_bytes(from.minima);
  }
  if (is_in(SCALED_BY_SIGNED_BYTES, format)) d = d * two_signed_bytes(from.scales);
  if (is_in(SCALED_BY_NIBBLES, format)) {
    d = d * two_bytes(from.scales & 0x0f0fu);
    minimum = -minimum * two_bytes(from.scales >> 4 & 0x0f0fu);
  }
  if (is_in(WITH_FINER, format)) {
    minimum = minimum - d * 0.5;
    d = d * 0.0625;
  }
  return GroupScale(d, minimum);
}
