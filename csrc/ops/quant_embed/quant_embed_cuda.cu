// QuantEmbed on a GPU: a thread a weight.
#include <type_traits>

#include "gpu/cuda/device.h"
#include "ops/quant_embed/quant_embed.h"

namespace edge_rt::gpu {
namespace {

#include "ops/quant_linear/quant_linear_codes.inl"

// What group_scale takes one row at once from.
struct RowLanes {
  using V = float;
  static constexpr int kRows = 1;

  static V halves(const uint8_t* at) { return float_of_half(*reinterpret_cast<const uint16_t*>(at)); }
  static V bytes(const uint8_t* at) { return from_int(*at); }
  static V signed_bytes(const uint8_t* at) { return from_int(static_cast<int8_t>(*at)); }
  static V low_nibbles(const uint8_t* at) { return from_int(*at & 15); }
  static V high_nibbles(const uint8_t* at) { return from_int(*at >> 4); }
  static V exponents(const uint8_t* at) { return exponent_scale(*at); }
  static V small_floats(const uint8_t* at) { return float_of_half(half_of_float8(*at)); }
  static V mul(V a, V b) { return gpu::mul(a, b); }
  static V times(V a, float b) { return gpu::mul(a, b); }
  static V sub(V a, V b) { return add(a, -b); }
  static V negative(V a) { return -a; }
};

template <WeightFormat format>
EDGE_RT_DEVICE float coded_weight(const uint8_t* unit, const uint8_t* finer, int place, int input, int row) {
  constexpr WeightFacts kFacts = facts(format);
  constexpr UnitLayout kAt = unit_layout(format);
  const int group = input / (kBlock / kFacts.groups);
  const GroupScale<float> scale = group_scale<format, RowLanes>(unit, place * kFacts.groups + group, row);
  int code = code_at(format, unit + place * kAt.code_bytes, finer, input, row);
  if (has_zero_point(format)) code -= unit[kAt.scales + row];
  const float value = kFacts.has_minimum ? fma(scale.d, from_int(code), scale.minimum) : mul(scale.d, from_int(code));
  return has_row_scale(format) ? mul(reinterpret_cast<const float*>(unit + kAt.d)[row], value) : value;
}

// Weight number `input` of row `row` of a tile.
template <WeightFormat format>
EDGE_RT_DEVICE float weight_of(const uint8_t* tile, const uint8_t* finer, int input, int row) {
  constexpr WeightFacts kFacts = facts(format);
  if constexpr (format == WeightFormat::kF32) {
    return reinterpret_cast<const float*>(tile)[input * kTileRows + row];
  } else if constexpr (!rounds_activations(format)) {
    const uint16_t half = reinterpret_cast<const uint16_t*>(tile)[input * kTileRows + row];
    return format == WeightFormat::kF16 ? float_of_half(half) : float_of_bits(uint32_t{half} << 16);
  } else {
    const int block = input / kBlock;
    const uint8_t* unit = tile + int64_t{block / kFacts.unit_blocks} * unit_bytes(format);
    return coded_weight<format>(unit, finer + int64_t{block} * finer_bytes(format), block % kFacts.unit_blocks,
                                input % kBlock, row);
  }
}

template <int format = 0>
EDGE_RT_DEVICE float weight_of_any(WeightFormat wanted, const uint8_t* tile, const uint8_t* finer, int input, int row) {
  constexpr WeightFormat kFormat = static_cast<WeightFormat>(format);
  if constexpr (kFormat == read_as(kFormat)) {
    if (wanted == kFormat) return weight_of<kFormat>(tile, finer, input, row);
  }
  if constexpr (format + 1 < kWeightFormatCount) return weight_of_any<format + 1>(wanted, tile, finer, input, row);
  return 0.0f;
}

}  // namespace

// Grid: rows, and stretches of as many inputs as there are threads. A row whose id is none of the matrix becomes NaN:
// nothing is read outside, and nobody takes it for an answer.
EDGE_RT_KERNEL(quant_embed_rows, 128, EmbedRows) {
  const int64_t row = block_x(), input = int64_t{block_y()} * 128 + thread(), id = args.ids[row];
  if (input >= args.features) return;
  float* y = args.y + row * args.features + input;
  if (id < 0 || id >= args.out_features) {
    *y = float_of_bits(0x7fc00000u);
    return;
  }
  const PackedWeight& weight = args.weight;
  const int64_t tile = id / kTileRows;
  const float value = weight_of_any(read_as(weight.format), weight.tile(tile), weight.finer(tile),
                                    static_cast<int>(input), static_cast<int>(id % kTileRows));
  *y = mul(value, args.scale);
}

}  // namespace edge_rt::gpu
