// The CPU's logarithm (s_log in kernels/simd_math.inl), which computes in doubles, in integers of 32 bits: not every chip
// has doubles. Each operation is rounded as IEEE says; no number here is subnormal or infinite.

// m * 2^e, m a number of 64 bits (low word first) whose highest bit is set, and its lowest eleven are not; or 0.
struct Double {
  uint sign;  // 0 or 1
  int e;
  uvec2 m;
};

bool is_zero(Double a) { return a.m.y == 0u; }

uvec2 shifted_left(uvec2 m, int count) {
  return count == 0 ? m : count < 32 ? uvec2(m.x << count, m.y << count | m.x >> (32 - count)) : uvec2(0u, m.x << (count - 32));
}

// What falls off is kept in the lowest bit.
uvec2 shifted_right(uvec2 m, int count) {
  if (count == 0) return m;
  if (count > 63) return uvec2((m.x | m.y) != 0u ? 1u : 0u, 0u);
  const uvec2 moved = count < 32 ? uvec2(m.x >> count | m.y << (32 - count), m.y >> count)
                                 : uvec2(count == 32 ? m.y : m.y >> (count - 32), 0u);
  return shifted_left(moved, count) == m ? moved : uvec2(moved.x | 1u, moved.y);
}

// To 53 bits, ties to even; the lowest bit stands for all behind it.
Double rounded_double(uint sign, int e, uvec2 m) {
  if ((m.x | m.y) == 0u) return Double(0u, 0, uvec2(0u));
  const int up = m.y != 0u ? 31 - findMSB(m.y) : 63 - findMSB(m.x);
  m = shifted_left(m, up);
  e -= up;
  const uint rest = m.x & 0x7ffu;
  m.x &= ~0x7ffu;
  if (rest > 0x400u || (rest == 0x400u && (m.x & 0x800u) != 0u)) {
    uint carry;
    m.x = uaddCarry(m.x, 0x800u, carry);
    m.y += carry;
    if (m.y == 0u && carry != 0u) return Double(sign, e + 1, uvec2(0u, 0x80000000u));
  }
  return Double(sign, e, m);
}

Double product(Double a, Double b) {
  if (is_zero(a) || is_zero(b)) return Double(0u, 0, uvec2(0u));
  // 128 bits in four words.
  uint low_high, low_low, cross_high, cross_low, other_high, other_low, high_high, high_low, carry, more;
  umulExtended(a.m.x, b.m.x, low_high, low_low);
  umulExtended(a.m.x, b.m.y, cross_high, cross_low);
  umulExtended(a.m.y, b.m.x, other_high, other_low);
  umulExtended(a.m.y, b.m.y, high_high, high_low);
  uint second = uaddCarry(low_high, cross_low, carry);
  second = uaddCarry(second, other_low, more);
  uint third = uaddCarry(high_low, carry + more, carry);
  uint fourth = high_high + carry;
  third = uaddCarry(third, cross_high, carry);
  fourth += carry;
  third = uaddCarry(third, other_high, carry);
  fourth += carry;
  const uint rest = (second | low_low) != 0u ? 1u : 0u;
  // The highest bit may be missing: one more of the words below takes the lowest place then.
  uvec2 m = uvec2(third, fourth);
  int e = a.e + b.e + 64;
  if ((fourth & 0x80000000u) == 0u) {
    m = shifted_left(m, 1);
    m.x |= second >> 31;
    e -= 1;
    return rounded_double(a.sign ^ b.sign, e, uvec2(m.x | ((second << 1 | low_low) != 0u ? 1u : 0u), m.y));
  }
  return rounded_double(a.sign ^ b.sign, e, uvec2(m.x | rest, m.y));
}

Double sum_of(Double a, Double b) {
  if (is_zero(a)) return b;
  if (is_zero(b)) return a;
  if (a.e < b.e || (a.e == b.e && (a.m.y < b.m.y || (a.m.y == b.m.y && a.m.x < b.m.x)))) {
    const Double other = a;
    a = b;
    b = other;
  }
  const uvec2 m = shifted_right(b.m, a.e - b.e);
  uint carry;
  if (a.sign == b.sign) {
    uvec2 all;
    all.x = uaddCarry(a.m.x, m.x, carry);
    uint over;
    all.y = uaddCarry(a.m.y, carry, over);
    uint more;
    all.y = uaddCarry(all.y, m.y, more);
    if (over + more == 0u) return rounded_double(a.sign, a.e, all);
    all = shifted_right(all, 1);
    return rounded_double(a.sign, a.e + 1, uvec2(all.x, all.y | 0x80000000u));
  }
  uvec2 rest;
  rest.x = usubBorrow(a.m.x, m.x, carry);
  rest.y = a.m.y - m.y - carry;
  return rounded_double(a.sign, a.e, rest);
}

// By bits: there is one in a row.
Double quotient(Double a, Double b) {
  if (is_zero(a)) return a;
  uvec2 rest = a.m, q = uvec2(0u);
  bool is_over = false;  // of the rest, a 65th bit
  for (int i = 0; i < 64; ++i) {
    q = shifted_left(q, 1);
    if (is_over || rest.y > b.m.y || (rest.y == b.m.y && rest.x >= b.m.x)) {
      uint borrow;
      rest.x = usubBorrow(rest.x, b.m.x, borrow);
      rest.y = rest.y - b.m.y - borrow;
      q.x |= 1u;
    }
    is_over = (rest.y & 0x80000000u) != 0u;
    rest = shifted_left(rest, 1);
  }
  if (is_over || (rest.x | rest.y) != 0u) q.x |= 1u;
  return rounded_double(a.sign ^ b.sign, a.e - b.e - 63, q);
}

// To a float that is a normal number, or 0.
float float_of_double(Double a) {
  if (is_zero(a)) return 0.0;
  const uint rest = a.m.y & 0xffu;
  uint m = a.m.y >> 8;
  int e = a.e + 63 + 127;
  if (rest > 0x80u || (rest == 0x80u && (a.m.x != 0u || (m & 1u) != 0u))) ++m;
  return uintBitsToFloat(a.sign << 31 | (uint(e - 1) << 23) + m);
}

const Double ONE = Double(0u, -63, uvec2(0u, 0x80000000u));

const Double LN_2 = Double(0u, -64, uvec2(0xd1cf7800u, 0xb17217f7u));
// 1 / 23, 1 / 21 ... 1.
const Double ODD[12] = Double[12](
    Double(0u, -68, uvec2(0x590b2000u, 0xb21642c8u)),
    Double(0u, -68, uvec2(0x0c30c000u, 0xc30c30c3u)),
    Double(0u, -68, uvec2(0x0d794000u, 0xd79435e5u)),
    Double(0u, -68, uvec2(0xf0f0f000u, 0xf0f0f0f0u)),
    Double(0u, -67, uvec2(0x88888800u, 0x88888888u)),
    Double(0u, -67, uvec2(0x89d8a000u, 0x9d89d89du)),
    Double(0u, -67, uvec2(0xe8ba3000u, 0xba2e8ba2u)),
    Double(0u, -67, uvec2(0x8e38e000u, 0xe38e38e3u)),
    Double(0u, -66, uvec2(0x49249000u, 0x92492492u)),
    Double(0u, -66, uvec2(0xccccd000u, 0xccccccccu)),
    Double(0u, -65, uvec2(0xaaaaa800u, 0xaaaaaaaau)),
    Double(0u, -63, uvec2(0x00000000u, 0x80000000u)));

Double double_of_int(int n) { return rounded_double(n < 0 ? 1u : 0u, 0, uvec2(uint(abs(n)), 0u)); }

float log_of(float x) {
  const uint bits = floatBitsToUint(x);
  int exponent = int(bits >> 23) - 127;
  Double m = Double(0u, -63, uvec2(0u, (bits & 0x7fffffu) << 8 | 0x80000000u));
  // 1.4142135623730951, above which no float is nearer than this.
  if (m.m.y > 0xb504f333u) {
    m.e -= 1;
    ++exponent;
  }
  const Double minus_one = Double(1u, ONE.e, ONE.m);
  const Double s = quotient(sum_of(m, minus_one), sum_of(m, ONE)), square = product(s, s);
  Double series = Double(0u, 0, uvec2(0u));
  for (int n = 0; n < 12; ++n) series = sum_of(product(series, square), ODD[n]);
  const Double twice = Double(s.sign, s.e + 1, s.m);
  return float_of_double(sum_of(product(double_of_int(exponent), LN_2), product(twice, series)));
}
