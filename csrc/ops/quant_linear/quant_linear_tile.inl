// What the tile kernels of all instruction sets share; included in front of quant_linear_tile_<set>.inl.

// One tile and one group of M rows, in the layouts of PackedWeight and Activations.
struct Tile {
  const uint8_t* weight;
  int64_t blocks;
  const int8_t* codes;  // [block][M][32]
  const float* scale;   // [block][M]
  const uint32_t* extra;
  const uint8_t* prefetch_end;  // memory before it may be fetched ahead
};

// An integer below 2^22 in size, added to these bits, is a float that is larger by kMagic: a conversion for one addition.
constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
constexpr int32_t kMagicBits = 0x4B400000;

// How far ahead of their use weights are fetched: at 8 rows the walk is slower than memory, but the hardware's own
// prefetcher stops at every page, which cost 40 %.
constexpr int64_t kPrefetchBytes = 6144;

// The sum f of 16 outputs after one block of integer dot products.
inline VF add_block(VF f, VI dot, VF d, float scale) {
  const VF shifted = vf_from_bits(vi_add(dot, vi_set1(kMagicBits)));
  return vf_fma(vf_fma(shifted, d, vf_mul(d, vf_set1(-kMagic))), vf_set1(scale), f);
}
