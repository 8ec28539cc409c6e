// Float operations with the CPU's bits, also on devices whose own are less exact: `mended` has a bit for each operation
// that the device's self-test found wrong, which is then computed in integers of 32 bits. That is exact for all floats:
// subnormal ones, infinities, signed zeros; of what is no number (NaN) it gives another one of the many there are.
const uint MENDS_FMA = 1u, MENDS_DIVISION = 2u, MENDS_SQRT = 4u, MENDS_HALVES = 8u;

const uint SIGN_BIT = 0x80000000u, INFINITY_BITS = 0x7f800000u, NAN_BITS = 0x7fc00000u;

// Integers of 64 bits, low half first.
uvec2 shifted_up(uvec2 a, int by) {
  if (by == 0) return a;
  return by < 32 ? uvec2(a.x << by, a.y << by | a.x >> (32 - by)) : uvec2(0u, a.x << (by - 32));
}
// Whatever falls off is kept as the lowest bit, which is all that rounding needs to know of it.
uvec2 shifted_down(uvec2 a, int by) {
  if (by == 0) return a;
  if (by > 63) return uvec2((a.x | a.y) != 0u ? 1u : 0u, 0u);
  uvec2 kept;
  if (by < 32) {
    kept = uvec2(a.x >> by | a.y << (32 - by), a.y >> by);
  } else {
    kept = uvec2(by == 32 ? a.y : a.y >> (by - 32), 0u);
  }
  if (shifted_up(kept, by) != a) kept.x |= 1u;
  return kept;
}

// A finite float other than zero is mantissa * 2^(exponent - 150), with 24 bits of mantissa.
void take_apart(uint bits, out uint mantissa, out int exponent) {
  mantissa = bits & 0x7fffffu;
  exponent = int(bits >> 23 & 255u);
  if (exponent == 0) {
    const int missing = 23 - findMSB(mantissa);
    mantissa <<= missing;
    exponent = 1 - missing;
  } else {
    mantissa |= 0x800000u;
  }
}

// The float nearest to a number above zero, ties to even: the number is `whole` * 2^exponent, its lowest bit being set
// if there is more below.
float rounded(uint sign, uvec2 whole, int exponent) {
  const int top = whole.y != 0u ? 32 + findMSB(whole.y) : findMSB(whole.x);
  const int biased = top + exponent + 127;               // the exponent of a float with this highest bit
  const int bits = biased >= 1 ? 24 : 23 + biased;       // that such a float has
  if (bits < 0) return uintBitsToFloat(sign);            // below half of the smallest
  whole = shifted_up(whole, 63 - top);
  uint mantissa = bits == 0 ? 0u : whole.y >> (32 - bits);
  const uvec2 rest = shifted_up(whole, bits);
  if (rest.y > SIGN_BIT || (rest.y == SIGN_BIT && (rest.x != 0u || (mantissa & 1u) == 1u))) ++mantissa;
  // A mantissa that became 2^24, or 2^23 of a subnormal one, carries into the exponent.
  const uint all_bits = biased >= 1 ? (uint(min(biased, 256) - 1) << 23) + mantissa : mantissa;
  return uintBitsToFloat(sign | min(all_bits, INFINITY_BITS));
}

float fma_of_integers(float a, float b, float c) {
  const uint a_bits = floatBitsToUint(a), b_bits = floatBitsToUint(b), c_bits = floatBitsToUint(c);
  const uint a_size = a_bits & ~SIGN_BIT, b_size = b_bits & ~SIGN_BIT, c_size = c_bits & ~SIGN_BIT;
  const uint product_sign = (a_bits ^ b_bits) & SIGN_BIT, c_sign = c_bits & SIGN_BIT;
  if (max(a_size, b_size) >= INFINITY_BITS || c_size >= INFINITY_BITS) {
    const bool is_no_number = max(max(a_size, b_size), c_size) > INFINITY_BITS || min(a_size, b_size) == 0u &&
                              max(a_size, b_size) == INFINITY_BITS;
    const bool is_infinite = max(a_size, b_size) == INFINITY_BITS;
    if (is_no_number || (is_infinite && c_size == INFINITY_BITS && product_sign != c_sign)) {
      return uintBitsToFloat(NAN_BITS);
    }
    return uintBitsToFloat((is_infinite ? product_sign : c_sign) | INFINITY_BITS);
  }
  if (a_size == 0u || b_size == 0u) return uintBitsToFloat(c_size != 0u ? c_bits : c_sign & product_sign);
  uint a_mantissa, b_mantissa, c_mantissa;
  int a_exponent, b_exponent, c_exponent;
  take_apart(a_bits, a_mantissa, a_exponent);
  take_apart(b_bits, b_mantissa, b_exponent);
  uvec2 product;
  umulExtended(a_mantissa, b_mantissa, product.y, product.x);
  product = shifted_up(product, 14);  // its highest bit is then 61 or 60: a sum has room
  int exponent = a_exponent + b_exponent - 300 - 14;
  if (c_size == 0u) return rounded(product_sign, product, exponent);
  take_apart(c_bits, c_mantissa, c_exponent);
  uvec2 addend = uvec2(0u, c_mantissa << 6);  // highest bit 61
  c_exponent -= 150 + 38;
  const int common_exponent = max(exponent, c_exponent);
  product = shifted_down(product, common_exponent - exponent);
  addend = shifted_down(addend, common_exponent - c_exponent);
  uint carry;
  if (product_sign == c_sign) {
    const uint low_sum = uaddCarry(product.x, addend.x, carry);
    return rounded(c_sign, uvec2(low_sum, product.y + addend.y + carry), common_exponent);
  }
  if (product == addend) return 0.0;
  const bool is_c_larger = product.y < addend.y || (product.y == addend.y && product.x < addend.x);
  const uvec2 more = is_c_larger ? addend : product, less = is_c_larger ? product : addend;
  const uint low_difference = usubBorrow(more.x, less.x, carry);
  return rounded(is_c_larger ? c_sign : product_sign, uvec2(low_difference, more.y - less.y - carry), common_exponent);
}

float division_of_integers(float a, float b) {
  const uint sign = (floatBitsToUint(a) ^ floatBitsToUint(b)) & SIGN_BIT;
  const uint a_size = floatBitsToUint(a) & ~SIGN_BIT, b_size = floatBitsToUint(b) & ~SIGN_BIT;
  if (max(a_size, b_size) > INFINITY_BITS || (a_size == b_size && (a_size == 0u || a_size == INFINITY_BITS))) {
    return uintBitsToFloat(NAN_BITS);
  }
  if (a_size == INFINITY_BITS || b_size == 0u) return uintBitsToFloat(sign | INFINITY_BITS);
  if (b_size == INFINITY_BITS || a_size == 0u) return uintBitsToFloat(sign);
  uint a_mantissa, b_mantissa;
  int a_exponent, b_exponent;
  take_apart(a_size, a_mantissa, a_exponent);
  take_apart(b_size, b_mantissa, b_exponent);
  // 32 bits behind the point, eight at a time; what is left after them is one bit.
  uint quotient = a_mantissa / b_mantissa, left = a_mantissa % b_mantissa;
  uvec2 whole = uvec2(0u, quotient);
  for (int i = 0; i < 4; ++i) {
    left <<= 8;
    whole.x = whole.x << 8 | left / b_mantissa;
    left %= b_mantissa;
  }
  if (left != 0u) whole.x |= 1u;
  return rounded(sign, whole, a_exponent - b_exponent - 32);
}

float sqrt_of_integers(float a) {
  const uint bits = floatBitsToUint(a);
  if ((bits & ~SIGN_BIT) == 0u || bits == INFINITY_BITS) return a;
  if (bits > INFINITY_BITS) return uintBitsToFloat(NAN_BITS);  // below zero, or no number
  uint mantissa;
  int exponent;
  take_apart(bits, mantissa, exponent);
  exponent -= 150;
  if ((exponent & 1) != 0) mantissa <<= 1;
  // The root of mantissa * 2^26, bit by bit from pairs of bits: 25 or 26 bits, and one for what is left.
  uvec2 square = shifted_up(uvec2(mantissa, 0u), 26 + 12);  // its 26 pairs, from the highest bit down
  uint root = 0u, left = 0u;
  for (int i = 0; i < 26; ++i) {
    left = left << 2 | square.y >> 30;
    square = shifted_up(square, 2);
    const uint step = root << 2 | 1u;
    root <<= 1;
    if (left >= step) {
      left -= step;
      root |= 1u;
    }
  }
  return rounded(0u, uvec2(root << 1 | (left != 0u ? 1u : 0u), 0u), (exponent >> 1) - 13 - 1);
}

float fused(float a, float b, float c) { return (mended & MENDS_FMA) != 0u ? fma_of_integers(a, b, c) : fma(a, b, c); }
float div_exact(float a, float b) { return (mended & MENDS_DIVISION) != 0u ? division_of_integers(a, b) : a / b; }
float sqrt_exact(float a) { return (mended & MENDS_SQRT) != 0u ? sqrt_of_integers(a) : sqrt(a); }

float half_by_integers(uint half_bits) {
  const uint size = half_bits & 0x7fffu, sign = (half_bits & 0x8000u) << 16;
  if (size < 0x400u) {  // subnormal halves are normal floats
    return uintBitsToFloat(sign | floatBitsToUint(float(size) * uintBitsToFloat((127u - 24u) << 23)));
  }
  return uintBitsToFloat(sign | ((size << 13) + (size < 0x7c00u ? 112u << 23 : 224u << 23)));
}
// Of the low 16 bits of `half_bits`.
float float_of_half(uint half_bits) {
  return (mended & MENDS_HALVES) != 0u ? half_by_integers(half_bits) : unpackHalf2x16(half_bits & 0xffffu).x;
}

// To nearest, ties to even; what lies beyond +-65504 becomes +-65504. Devices round their own conversion as they like,
// so this is in integers on all.
uint half_of_float(float a) {
  const uint bits = floatBitsToUint(a), size = bits & ~SIGN_BIT, sign = bits >> 16 & 0x8000u;
  if (size > INFINITY_BITS) return sign | 0x7e00u;
  if (size >= 0x477fe000u) return sign | 0x7bffu;  // 65504
  if (size < 0x33000000u) return sign;             // below half of 2^-24
  if (size >= 0x38800000u) return sign | (size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13;
  const uint mantissa = (size & 0x7fffffu) | 0x800000u;  // of a float below 2^-14, in steps of 2^-24:
  const int dropped = 126 - int(size >> 23);
  const uint kept = mantissa >> dropped, half_step = 1u << (dropped - 1), rest = mantissa & (2u * half_step - 1u);
  return sign | kept + (rest > half_step || (rest == half_step && (kept & 1u) == 1u) ? 1u : 0u);
}
