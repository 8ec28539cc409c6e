// Blocks of weights as threads multiply them: two neighbouring rows of a tile and the inputs of one group, a whole block
// or half of one. Both rows' bytes of a line of codes are neighbours, and so are their scales.

#include "ops/quant_linear/vulkan/quant_linear_formats.glsl"

// The formats of a job, of which it has as many as parts at most, are the bits of `choices`.
const int NO_FORMAT = 31;
uint rounding_formats() { return choices & (ALL_FORMATS & ~WITH_FLOATS & ~W8N_UPPER); }
int format_of_choices(int number) {
  uint left = rounding_formats();
  [[unroll]] for (int i = 0; i < number; ++i) left &= left - 1u;
  return left == 0u ? NO_FORMAT : findLSB(left);
}
// Whether a tile of this format is of the number-th one of all.
bool is_choice(int number, int format) {
  const int wanted = format_of_choices(number);
  return wanted != NO_FORMAT && (bitCount(rounding_formats()) == 1 || format == wanted);
}

// Of codes with a table: what both halves of a byte stand for, the lower one in bits 0 to 7, the other in 16 to 23; for
// each of the two tables.
shared uint pairs_of_codes[2 * 256];
int table_of(int format) { return is_in(WITH_DOUBLED_TABLE, format) ? 256 : 0; }

// All threads of a block, before anything else: it meets where a format has a table.
void prepare_tables() {
  if ((rounding_formats() & WITH_TABLE) == 0u) return;
  for (int i = thread(); i < 256; i += THREADS) {
    for (int table = 0; table < 2; ++table) {
      pairs_of_codes[256 * table + i] = table_byte(table, uint(i) & 15u) | table_byte(table, uint(i) >> 4) << 16;
    }
  }
  meet();
}

// A tile of a job. `kind` is that of the sums of x that its format needs.
struct FoundTile {
  uvec2 weight, finer;
  int format, kind;
};

FoundTile find_tile(LinearJob job, int tile) {
  int part = 0;
  if (job.its.weight.alternate != 0) {
    part = tile & 1;
    tile >>= 1;
  } else {
    for (; part + 1 < job.its.weight.count && tile >= low(job.its.weight.parts[part].tiles); ++part) {
      tile -= low(job.its.weight.parts[part].tiles);
    }
  }
  const uvec2 data = uvec2(job.its.weight.parts[part].data);
  const int stored = job.its.weight.parts[part].format, blocks = low(job.its.weight.parts[part].blocks);
  const int format = read_as(stored);
  const uint tile_bytes = uint((blocks >> unit_shift(format)) * unit_bytes(format));
  const uvec2 behind = advanced(data, uint(low(job.its.weight.parts[part].tiles)), tile_bytes);
  return FoundTile(advanced(data, uint(tile), tile_bytes),
                   advanced(behind, uint(tile), uint(blocks * finer_bytes(stored))), format,
                   job.its.weight.sums[part]);
}

// The block whose weights block number `block` of a row of x is multiplied with, of `plain` that are not fine codes.
int weights_of(LinearJob job, int block, int plain) {
  if (block < plain) return block;
  block -= plain;
  int run = 0;
  for (;; ++run) {
    const int length = job.its.weight.fine.end[run] - job.its.weight.fine.begin[run];
    if (block < length) return job.its.weight.fine.begin[run] + block;
    block -= length;
  }
}

// A group as it is loaded.
struct LoadedGroup {
  uvec2 lines[8];
  uvec2 finer[4];
  ScaleWords scales;
};

LoadedGroup load_group(FoundTile tile, int format, int block, int part, int pair) {
  LoadedGroup to;
  const int number = block & ((1 << unit_shift(format)) - 1);
  const int unit = (block >> unit_shift(format)) * unit_bytes(format);
  Pairs lines = Pairs(tile.weight);
  const int first = (unit + number * code_bytes(format) >> 3) + pair;  // lines are 8 pairs of rows
  if (is_in(WITH_TWO_BITS | WITH_THREE_BITS, format)) {
    to.lines[0] = lines.at[first + 8 * part];
    if (is_in(WITH_THREE_BITS, format)) to.lines[1] = lines.at[first + 16];
  } else if (is_in(WITH_HALF_BLOCKS, format)) {
    to.lines[0] = lines.at[first + 16 * part];
    to.lines[1] = lines.at[first + 16 * part + 8];
    if (is_in(WITH_SIX_BITS, format)) to.lines[2] = lines.at[first + 32 + 8 * part];
  } else {
    [[unroll]] for (int i = 0; i < 4; ++i) to.lines[i] = lines.at[first + 8 * i];
    if (is_in(WITH_FIVE_BITS, format)) to.lines[4] = lines.at[first + 32];
    if (is_in(WITH_BYTES, format)) {
      [[unroll]] for (int i = 4; i < 8; ++i) to.lines[i] = lines.at[first + 8 * i];
    }
    if (is_in(WITH_FINER, format)) {
      Pairs finer = Pairs(tile.finer);
      [[unroll]] for (int i = 0; i < 4; ++i) to.finer[i] = finer.at[32 * block + 8 * i + pair];
    }
  }
  to.scales = load_scales(tile.weight, format, unit, (number << group_shift(format)) + part, pair);
  return to;
}

// A group, ready to be multiplied with any number of rows of x.
struct WeightGroup {
  uvec2 codes[8];  // quartets of inputs, of both rows: 8, or of half blocks 4
  uvec2 finer[8];
  ivec2 zero;      // zero points
  vec2 d, minimum;
};

void put_quartets(int format, uvec2 line, out uvec2 low_ones, out uvec2 high_ones) {
  if (is_in(WITH_TABLE, format)) {
    const uint table = uint(table_of(format));
    uvec2 first, second;
    [[unroll]] for (int r = 0; r < 2; ++r) {
      const uint word = line[r];
      first[r] = pairs_of_codes[table + (word & 0xffu)] | pairs_of_codes[table + (word >> 8 & 0xffu)] << 8;
      second[r] = pairs_of_codes[table + (word >> 16 & 0xffu)] | pairs_of_codes[table + (word >> 24)] << 8;
    }
    low_ones = first & 0xffffu | second << 16;
    high_ones = first >> 16 | second & 0xffff0000u;
  } else {
    low_ones = line & 0x0f0f0f0fu;
    high_ones = line >> 4 & 0x0f0f0f0fu;
  }
}

// Codes as they are multiplied: without a zero point, 2^signed_shift times as large, for nested ones the upper halves.
WeightGroup unpack_group(int format, int part, LoadedGroup from) {
  WeightGroup to;
  const bool is_half = is_in(WITH_HALF_BLOCKS, format);
  if (is_in(WITH_BYTES, format)) {
    to.codes = from.lines;
  } else if (is_in(WITH_TWO_BITS | WITH_THREE_BITS, format)) {
    [[unroll]] for (int k = 0; k < 4; ++k) {
      to.codes[k] = from.lines[0] >> 2 * k & 0x03030303u;
      if (is_in(WITH_THREE_BITS, format)) to.codes[k] |= (from.lines[1] >> 4 * part + k & 0x01010101u) << 2;
    }
  } else {
    [[unroll]] for (int i = 0; i < 4; ++i) {
      if (i < 2 || !is_half) put_quartets(format, from.lines[i], to.codes[2 * i], to.codes[2 * i + 1]);
    }
    if (is_in(WITH_FIVE_BITS, format)) {
      [[unroll]] for (int k = 0; k < 8; ++k) to.codes[k] |= (from.lines[4] >> k & 0x01010101u) << 4;
    }
    if (is_in(WITH_SIX_BITS, format)) {
      [[unroll]] for (int k = 0; k < 4; ++k) to.codes[k] |= (from.lines[2] >> 2 * k & 0x03030303u) << 4;
    }
    if (is_in(WITH_FINER, format)) {
      [[unroll]] for (int i = 0; i < 4; ++i) {
        to.finer[2 * i] = from.finer[i] & 0x0f0f0f0fu;
        to.finer[2 * i + 1] = from.finer[i] >> 4 & 0x0f0f0f0fu;
      }
    }
  }
  const int shift = signed_shift(format);
  if (shift != 0) {
    [[unroll]] for (int k = 0; k < 8; ++k) {
      if (k < 4 || !is_half) to.codes[k] = to.codes[k] << shift ^ 0x80808080u;
    }
  }
  const GroupScale scale = group_scale(format, from.scales);
  to.zero = ivec2(from.scales.scales & 0xffu, from.scales.scales >> 8 & 0xffu);
  // A smaller scale for larger sums is the same product. What is infinite is no number, as on the CPU, which adds a
  // multiple of it and takes that away again.
  to.d = (scale.d + scale.d * 0.0) * uintBitsToFloat(uint(127 - shift) << 23);
  to.minimum = scale.minimum;
  return to;
}

// Codes of a row of x that meet a group: the block's, or of half a block the first four words.
struct InputCodes {
  uvec4 first, second;
};
InputCodes load_input(Quads codes, int format, int place, int part) {
  if (is_in(WITH_HALF_BLOCKS, format)) return InputCodes(codes.at[2 * place + part], uvec4(0u));
  return InputCodes(codes.at[2 * place], codes.at[2 * place + 1]);
}

// What sums of rows take as their next term, before the scale of the row of x: float(dot) * D. `sum` is the word of a
// row of x that zero points are multiplied with.
vec2 terms_of(int format, WeightGroup weights, InputCodes x, int sum) {
  ivec2 dots = is_in(WITH_ZERO_POINTS, format) ? weights.zero * sum : ivec2(0), finer = ivec2(0);
  [[unroll]] for (int k = 0; k < 8; ++k) {
    if (k >= 4 && is_in(WITH_HALF_BLOCKS, format)) break;
    const uint codes = k < 4 ? x.first[k & 3] : x.second[k & 3];
    dots.x = dot4(weights.codes[k].x, codes, dots.x);
    dots.y = dot4(weights.codes[k].y, codes, dots.y);
    if (is_in(WITH_FINER, format)) {
      finer.x = dot4(weights.finer[k].x, codes, finer.x);
      finer.y = dot4(weights.finer[k].y, codes, finer.y);
    }
  }
  if (is_in(WITH_FINER, format)) dots = 16 * dots + finer;
  const vec2 terms = vec2(dots) * weights.d;
  if (!is_in(SCALED_BY_EXPONENTS, format)) return terms;
  // The CPU takes 1.5 * 2^23 times D away again, which is infinite from 2^105 on.
  const float most = uintBitsToFloat((127u + 105u) << 23);
  return mix(terms, vec2(uintBitsToFloat(SIGN_BIT | INFINITY_BITS)), greaterThanEqual(weights.d, vec2(most)));
}

// D of whole rows, of formats that have one.
float row_scale_of(FoundTile tile, int format, int row) {
  return Floats(tile.weight).at[(d_at(format) >> 2) + row];
}
