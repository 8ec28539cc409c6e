// QuantEmbed on the CPU, block by block: a row or two are read per token.

// Of 16 halves or more, number `index`.
inline float half_at(const uint8_t* halves, int index) {
  uint16_t lanes[16];
  __builtin_memcpy(lanes, halves, sizeof lanes);
  float values[16];
  vf_store(values, vf_from_half(lanes));
  return values[index];
}

inline float float_at(WeightFormat format, const uint8_t* block, int index) {
  const uint8_t* at = block + int64_t{index} * facts(format).float_bytes;
  float value;
  if (format == WeightFormat::kF32) {
    __builtin_memcpy(&value, at, sizeof value);
  } else if (format == WeightFormat::kF16) {
    value = half_at(block + index / kTileRows * 2 * kTileRows, index % kTileRows);
  } else {
    uint16_t half;
    __builtin_memcpy(&half, at, sizeof half);
    const uint32_t bits = uint32_t{half} << 16;
    __builtin_memcpy(&value, &bits, sizeof value);
  }
  return value;
}

// The weights of one row of block number `place` of a unit, whose finer codes lie at `finer` if it has any.
inline void unpack_block(WeightFormat format, const uint8_t* unit, const uint8_t* finer, int place, int row, float* y) {
  const WeightFacts& f = facts(format);
  const UnitLayout at = unit_layout(format);
  if (!rounds_activations(format)) {
    for (int k = 0; k < kBlock; ++k) y[k] = float_at(format, unit, kTileRows * k + row);
    return;
  }
  const int inputs = kBlock / f.groups;
  for (int g = 0; g < f.groups; ++g) {
    const bool has_zero = f.scales == ScaleKind::kZero;  // of the whole unit
    const int index = has_zero ? row : kTileRows * (place * f.groups + g) + row;
    const uint8_t scale = unit[at.scales + index];
    float d, minimum = 0.0f, of_row = 1.0f;
    if (f.scales == ScaleKind::kExponent) {
      d = exponent_scale(scale);
    } else if (f.scales == ScaleKind::kFloat8) {
      uint16_t halves[kTileRows] = {half_of_float8(scale)};
      d = half_at(reinterpret_cast<const uint8_t*>(halves), 0);
      __builtin_memcpy(&of_row, unit + at.d + 4 * row, sizeof of_row);
    } else {
      d = half_at(unit + at.d, row);
      if (f.has_minimum) minimum = half_at(unit + at.m, row);
      if (f.scales == ScaleKind::kByte) d *= static_cast<float>(scale);
      if (f.scales == ScaleKind::kByte) minimum *= -static_cast<float>(unit[at.minima + index]);
      if (f.scales == ScaleKind::kSignedByte) d *= static_cast<float>(static_cast<int8_t>(scale));
      if (f.scales == ScaleKind::kNibbles) d *= static_cast<float>(scale & 15);
      if (f.scales == ScaleKind::kNibbles) minimum *= -static_cast<float>(scale >> 4);
      if (is_nested(format)) {
        minimum -= 0.5f * d;
        d *= 0.0625f;
      }
    }
    for (int k = g * inputs; k < (g + 1) * inputs; ++k) {
      const int whole = code_at(format, unit + place * at.code_bytes, finer, k, row);
      const float code = static_cast<float>(has_zero ? whole - scale : whole);
      y[k] = f.has_minimum ? s_fma(d, code, minimum) : d * code * of_row;
    }
  }
}

inline void embed_row(const PackedWeight& weight, int64_t row, int64_t features, float scale, float* y) {
  const uint8_t* tile = weight.tile(row / kTileRows);
  const uint8_t* finer = weight.finer(row / kTileRows);
  const int64_t unit_blocks = facts(weight.format).unit_blocks;
  for (int64_t k = 0; k < features; k += kBlock) {
    float values[kBlock];
    const int64_t block = k / kBlock;
    unpack_block(weight.format, tile + block / unit_blocks * unit_bytes(weight.format),
                 finer + block * finer_bytes(weight.format), static_cast<int>(block % unit_blocks),
                 static_cast<int>(row % kTileRows), values);
    for (float& value : values) value *= scale;
    const int64_t left = features - k;
    __builtin_memcpy(y + k, values, sizeof(float) * static_cast<size_t>(left < kBlock ? left : kBlock));
  }
}

constexpr QuantEmbedKernels kQuantEmbedKernels{embed_row};
