// QuantLinear's inner loops in plain C++: the definition that the other instruction sets reproduce bit for bit.

template <int M, bool has_minimum>
inline void dot_tile_4bit(const Tile& tile, VF* out) {
  constexpr int kBytes = has_minimum ? 320 : 288;
  for (int m = 0; m < M; ++m) out[m] = vf_zero();
  for (int64_t b = 0; b < tile.blocks; ++b) {
    const uint8_t* w = tile.weight + b * kBytes;
    const VF d = vf_from_half(reinterpret_cast<const uint16_t*>(w + 256));
    const VF minimum = has_minimum ? vf_from_half(reinterpret_cast<const uint16_t*>(w + 288)) : d;
    for (int m = 0; m < M; ++m) {
      const int8_t* x = tile.codes + (b * M + m) * kBlock;
      int32_t dot[kTileRows];
      for (int r = 0; r < kTileRows; ++r) {
        dot[r] = has_minimum ? 0 : static_cast<int32_t>(tile.extra[b * M + m]);
        for (int i = 0; i < 4; ++i) {
          for (int j = 0; j < 4; ++j) {
            const int packed = w[64 * i + 4 * r + j];
            dot[r] += (packed & 15) * x[8 * i + j] + (packed >> 4) * x[8 * i + 4 + j];
          }
        }
      }
      float total;
      __builtin_memcpy(&total, &tile.extra[b * M + m], 4);
      out[m] = add_block(out[m], vi_load(dot), d, tile.scale[b * M + m]);
      if (has_minimum) out[m] = vf_fma(minimum, vf_set1(total), out[m]);
    }
  }
}

template <int M>
inline void dot_tile_8bit(const Tile& tile, VF* out) {
  for (int m = 0; m < M; ++m) out[m] = vf_zero();
  for (int64_t b = 0; b < tile.blocks; ++b) {
    const uint8_t* w = tile.weight + b * 544;
    const VF d = vf_from_half(reinterpret_cast<const uint16_t*>(w + 512));
    for (int m = 0; m < M; ++m) {
      const int8_t* x = tile.codes + (b * M + m) * kBlock;
      int32_t dot[kTileRows] = {};
      for (int r = 0; r < kTileRows; ++r) {
        for (int i = 0; i < 8; ++i) {
          for (int j = 0; j < 4; ++j) dot[r] += static_cast<int8_t>(w[64 * i + 4 * r + j]) * x[4 * i + j];
        }
      }
      out[m] = add_block(out[m], vi_load(dot), d, tile.scale[b * M + m]);
    }
  }
}
