// QuantEmbed on the CPU, block by block: a row or two are read per token.

inline float half_at(const uint8_t* halves, int index) {
  uint16_t lanes[16];
  __builtin_memcpy(lanes, halves, sizeof lanes);
  float values[16];
  vf_store(values, vf_from_half(lanes));
  return values[index];
}

// The weights of one row of a block.
inline void unpack_block(WeightFormat format, const uint8_t* block, int row, float* y) {
  switch (format) {
    case WeightFormat::kW4M:
    case WeightFormat::kW4: {
      const bool has_minimum = format == WeightFormat::kW4M;
      const float d = half_at(block + 256, row);
      const float minimum = has_minimum ? half_at(block + 288, row) : 0;
      for (int k = 0; k < kBlock; ++k) {
        const uint8_t packed = block[64 * (k / 8) + 4 * row + k % 4];
        const int code = k % 8 < 4 ? packed & 15 : packed >> 4;
        y[k] = has_minimum ? s_fma(d, static_cast<float>(code), minimum) : d * static_cast<float>(code - 8);
      }
      break;
    }
    case WeightFormat::kW8: {
      const float d = half_at(block + 512, row);
      for (int k = 0; k < kBlock; ++k) {
        y[k] = d * static_cast<float>(static_cast<int8_t>(block[64 * (k / 4) + 4 * row + k % 4]));
      }
      break;
    }
    case WeightFormat::kF16:
      for (int k = 0; k < kBlock; ++k) y[k] = half_at(block + 32 * k, row);
      break;
    case WeightFormat::kF32:
      for (int k = 0; k < kBlock; ++k) __builtin_memcpy(y + k, block + 64 * k + 4 * row, 4);
      break;
  }
}

inline void embed_row(const PackedWeight& weight, int64_t row, int64_t features, float* y) {
  const uint8_t* block = weight.data + row / kTileRows * weight.tile_bytes();
  for (int64_t k = 0; k < features; k += kBlock, block += block_bytes(weight.format)) {
    float values[kBlock];
    unpack_block(weight.format, block, static_cast<int>(row % kTileRows), values);
    const int64_t left = features - k;
    __builtin_memcpy(y + k, values, sizeof(float) * static_cast<size_t>(left < kBlock ? left : kBlock));
  }
}

constexpr QuantEmbedKernels kQuantEmbedKernels{embed_row};
