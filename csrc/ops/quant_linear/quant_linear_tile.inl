// What the tile kernels of all instruction sets share, and behind it those of this one.

// Stretches of blocks of one tile and one group of M rows, in the layouts of PackedWeight and Activations. Kernels go
// on with the sums that they find in `out`.
struct Tile {
  const uint8_t* weight;
  int64_t blocks;
  const int8_t* codes;          // [block][M][32]
  const float* scale;           // [block][M]
  const uint32_t* sums;         // [block][group of weights][M]
  const uint8_t* prefetch_end;  // memory before it may be fetched ahead
  const uint8_t* finer;         // of nested codes; they may be fetched ahead up to finer_end
  const uint8_t* finer_end;
  FetchAhead fetch;

  // Memory that is in the cache already.
  void fetch_nothing() {
    prefetch_end = weight;
    finer_end = finer;
  }
};

// Lines of w itself come anyway; a branch that leaves them out would take longer.
template <int bytes>
inline void prefetch_weights(const uint8_t* w, const uint8_t* end, FetchAhead fetch) {
  const uint8_t* far = w + fetch.far < end ? w + fetch.far : w;
  const uint8_t* near = w + fetch.near < end ? w + fetch.near : w;
#pragma GCC unroll 16
  for (int i = 0; i < (bytes + 63) / 64; ++i) {
    __builtin_prefetch(far + 64 * i, 0, 2);
    __builtin_prefetch(near + 64 * i, 0, 3);
  }
}

// Asks for what a walk over a tile will read: the unit's block, and finer codes if there are any.
template <WeightFormat format>
inline void prefetch_block(const Tile& tile, const uint8_t* block, const uint8_t* finer) {
  prefetch_weights<block_bytes(format)>(block, tile.prefetch_end, tile.fetch);
  if constexpr (is_nested(format)) prefetch_weights<finer_bytes(format)>(finer, tile.finer_end, tile.fetch);
}

// Asks for a line that will be written. CPUs too old for the instruction skip it.
inline void prefetch_to_write(const void* p) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(p)));
#else
  __builtin_prefetch(p, 1, 3);
#endif
}

// The sum f of 16 outputs after one block of integer dot products.
inline VF add_block(VF f, VI dot, VF d, float scale) {
  const VF shifted = vf_from_bits(vi_add(dot, vi_set1(kMagicBits)));
  return vf_fma(vf_fma(shifted, d, vf_mul(d, vf_set1(-kMagic))), vf_set1(scale), f);
}

#include "ops/quant_linear/quant_linear_codes.inl"

// A tile that is unpacked for many walks: of every block 512 bytes of codes, one each; then, as numbers of 32 bits of
// 16 rows, the zero points if there are any; then of every group the scale, and the minimum if there is one.
constexpr int unpacked_scales(WeightFormat format) { return 512 + (has_zero_point(format) ? 64 : 0); }
constexpr int unpacked_group(WeightFormat format) { return facts(format).has_minimum ? 128 : 64; }
constexpr int64_t unpacked_block_bytes(WeightFormat format) {
  return unpacked_scales(format) + facts(format).groups * unpacked_group(format);
}
static_assert(unpacked_block_bytes(WeightFormat::kW2K) == kUnpackedBlockBytes, "the format with most numbers");

#if defined(EDGE_RT_SIMD_AVX512)
#define EDGE_RT_UNPACKS_TILES
#include "ops/quant_linear/quant_linear_tile_avx512.inl"
#elif defined(EDGE_RT_SIMD_AVX2)
#define EDGE_RT_UNPACKS_TILES
#include "ops/quant_linear/quant_linear_tile_avx2.inl"
#elif defined(EDGE_RT_SIMD_NEON)
#include "ops/quant_linear/quant_linear_tile_neon.inl"
#else
#include "ops/quant_linear/quant_linear_tile_scalar.inl"
#endif
