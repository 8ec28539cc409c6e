#include "tests/golden_inputs.h"

namespace edge_rt::golden {
namespace {

// 2^-9 to 2^-5: sums of products stay near 1. One draw a statement here: compilers order the operands of `|` freely.
uint16_t random_scale(Random& random) {
  const int exponent = 6 + random.below(4);
  const int rest = random.below(1024);
  return static_cast<uint16_t>(exponent << 10 | rest);
}

uint16_t random_half(Random& random) {
  const int sign = random.below(2);
  return static_cast<uint16_t>(random_scale(random) | sign << 15);
}

void put_half(uint8_t* at, uint16_t half) { std::memcpy(at, &half, sizeof half); }

// Value number `row` of a block's 16, or zero behind the matrix.
void fill_quantised(Random& random, const Matrix& matrix, int64_t tile, uint8_t* unit) {
  const WeightFacts& f = facts(matrix.format);
  const UnitLayout at = unit_layout(matrix.format);
  const auto byte = [&random] { return static_cast<uint8_t>(random.next() >> 56); };
  for (int i = 0; i < at.scales; ++i) unit[i] = byte();
  const int bits = f.scales == ScaleKind::kByte ? 63 : 255;  // of scales that are bytes
  for (int i = at.scales; i < at.d; ++i) {
    const bool exists = tile * kTileRows + (i - at.scales) % kTileRows < matrix.outputs;
    const int drawn = byte() & bits, tame = f.scales == ScaleKind::kExponent ? 112 + drawn % 10 : drawn;
    const int small = f.scales == ScaleKind::kFloat8 ? 32 + tame % 32 : tame;
    unit[i] = static_cast<uint8_t>(exists ? small : 0);
  }
  if (f.scales == ScaleKind::kExponent) return;
  if (f.scales == ScaleKind::kFloat8) {
    // One for the row, whatever the unit.
    Random rows("row scales " + std::to_string(tile));
    for (int row = 0; row < kTileRows; ++row) {
      const float value = tile * kTileRows + row < matrix.outputs ? 0.5f + rows.uniform() * 0.25f : 0.0f;
      std::memcpy(unit + at.d + 4 * row, &value, sizeof value);
    }
    return;
  }
  const bool is_whole = f.scales == ScaleKind::kHalf || f.scales == ScaleKind::kZero;
  for (int row = 0; row < kTileRows; ++row) {
    const bool exists = tile * kTileRows + row < matrix.outputs;
    // Scales of bytes are whole numbers: their d is smaller.
    const uint16_t less = is_whole ? 0 : 5 << 10;
    put_half(unit + at.d + 2 * row, exists ? static_cast<uint16_t>(random_scale(random) - less) : uint16_t{0});
    if (f.has_minimum) {
      put_half(unit + at.m + 2 * row, exists ? static_cast<uint16_t>(random_half(random) - less) : uint16_t{0});
    }
  }
}

void fill_floats(Random& random, const Matrix& matrix, int64_t tile, int64_t block_index, uint8_t* block) {
  for (int input = 0; input < kBlock; ++input) {
    for (int row = 0; row < kTileRows; ++row) {
      const bool exists = tile * kTileRows + row < matrix.outputs && block_index * kBlock + input < matrix.inputs;
      const int index = input * kTileRows + row;
      if (matrix.format == WeightFormat::kF16) {
        put_half(block + 2 * index, exists ? random_half(random) : uint16_t{0});
      } else {
        const float value = exists ? random.uniform() * 0.125f : 0.0f;
        uint32_t word;
        std::memcpy(&word, &value, sizeof word);
        if (matrix.format == WeightFormat::kBF16) {
          put_half(block + 2 * index, static_cast<uint16_t>(word >> 16));
        } else {
          std::memcpy(block + 4 * index, &value, sizeof value);
        }
      }
    }
  }
}

}  // namespace

Random::Random(const std::string& name) {
  Hash hash;
  hash.add(name.data(), name.size());
  state_ = hash.value();
}

uint64_t Random::next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::vector<float> Random::uniform(int64_t count, float size) {
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = uniform() * size;
  return out;
}

void Hash::add(const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < bytes; ++i) value_ = (value_ ^ from[i]) * 0x100000001b3u;
}

Matrix::Matrix(Random& random, WeightFormat weight_format, int64_t output_count, int64_t input_count)
    : format(weight_format), outputs(output_count), inputs(input_count) {
  const int64_t tiles = (outputs + kTileRows - 1) / kTileRows;
  const int64_t units = (inputs + unit_inputs(format) - 1) / unit_inputs(format);
  memory = std::make_shared<Memory>(static_cast<size_t>(tiles * units * stored_unit_bytes(format)));
  auto* block = memory->as<uint8_t>();
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int64_t b = 0; b < units; ++b, block += unit_bytes(format)) {
      if (rounds_activations(format)) {
        fill_quantised(random, *this, tile, block);
      } else {
        fill_floats(random, *this, tile, b, block);
      }
    }
  }
  for (int64_t i = 0; i < tiles * units * finer_bytes(format); ++i) {
    block[i] = static_cast<uint8_t>(random.next() >> 56);
  }
}

PackedWeight Matrix::packed() const {
  return {memory->as<uint8_t>(), (outputs + kTileRows - 1) / kTileRows, (inputs + kBlock - 1) / kBlock, format};
}

}  // namespace edge_rt::golden
