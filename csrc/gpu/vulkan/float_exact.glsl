// Float operations with the CPU's bits, also on devices whose own are less exact: `mended` has a bit for each operation
// that the device's self-test found wrong.
const uint MENDS_FMA = 1u, MENDS_DIVISION = 2u, MENDS_SQRT = 4u, MENDS_HALVES = 8u;

float fma_of_integers(float a, float b, float c) { return a; }
float fused(float a, float b, float c) { return (mended & MENDS_FMA) != 0u ? fma_of_integers(a, b, c) : fma(a, b, c); }
float div_exact(float a, float b) { return a / b; }
float sqrt_exact(float a) { return sqrt(a); }
float float_of_half(uint h) { return unpackHalf2x16(h & 0xffffu).x; }
