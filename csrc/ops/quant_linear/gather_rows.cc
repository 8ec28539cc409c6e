#include "ops/quant_linear/gather_rows.h"

#include <cstring>

#include "common/export.h"

namespace edge_rt {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 24;

// Bytes of one row of a unit's lines, which lie one line behind the other with those of all 16 rows.
template <size_t size>
void copy_lines(const uint8_t* from, uint8_t* to, int begin, int end, int row, int to_row) {
  for (int at = begin; at < end; at += kTileRows * static_cast<int>(size)) {
    std::memcpy(to + at + static_cast<size_t>(to_row) * size, from + at + static_cast<size_t>(row) * size, size);
  }
}

void copy_unit_row(WeightFormat format, const uint8_t* from, uint8_t* to, int row, int to_row) {
  const UnitLayout& at = unit_layout(format);
  const WeightFacts& f = facts(format);
  if (f.codes == CodeKind::kFloats && f.float_bytes == 2) {
    copy_lines<2>(from, to, 0, at.scales, row, to_row);
  } else {
    copy_lines<4>(from, to, 0, at.scales, row, to_row);
  }
  copy_lines<1>(from, to, at.scales, at.d, row, to_row);
  if (has_row_scale(format)) {
    copy_lines<4>(from, to, at.d, at.bytes, row, to_row);
  } else {
    copy_lines<2>(from, to, at.d, at.bytes, row, to_row);
  }
}

}  // namespace

int64_t tile_bytes(WeightFormat format, int64_t inputs) {
  if (inputs < 1 || inputs > kMaxSize) return -1;
  // Finer codes lie apart from the tiles, behind all of them.
  if (finer_bytes(format) != 0) return -1;
  if (rounds_activations(format) && inputs % unit_inputs(format) != 0) return -1;
  return (inputs + unit_inputs(format) - 1) / unit_inputs(format) * unit_bytes(format);
}

bool gather_rows(WeightFormat format, int64_t rows, int64_t inputs, const uint8_t* from, const int32_t* ids,
                 int64_t count, uint8_t* to) {
  const int64_t tile = tile_bytes(format, inputs), unit = unit_bytes(format), used = count % kTileRows;
  if (tile < 0 || rows < 1 || rows > kMaxSize || count < 0 || count > kMaxSize) return false;
  for (int64_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || ids[i] >= rows) return false;
  }
  if (used != 0) std::memset(to + count / kTileRows * tile, 0, static_cast<size_t>(tile));
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* source = from + ids[i] / kTileRows * tile;
    uint8_t* target = to + i / kTileRows * tile;
    for (int64_t at = 0; at < tile; at += unit) {
      copy_unit_row(format, source + at, target + at, static_cast<int>(ids[i] % kTileRows),
                    static_cast<int>(i % kTileRows));
    }
  }
  return true;
}

}  // namespace edge_rt

// For edge_rt/ort/op_library.py: -1 where the format is unknown, or something else does not fit; else the bytes, or 0.
EDGE_RT_EXPORT int64_t edge_rt_tile_bytes(const char* format, int64_t in_features) {
  edge_rt::WeightFormat found;
  return edge_rt::weight_format_from_name(format, &found) ? edge_rt::tile_bytes(found, in_features) : -1;
}

EDGE_RT_EXPORT int edge_rt_gather_rows(const char* format, int64_t out_features, int64_t in_features,
                                       const uint8_t* from, const int32_t* ids, int64_t count, uint8_t* to) {
  edge_rt::WeightFormat found;
  if (!edge_rt::weight_format_from_name(format, &found)) return -1;
  return edge_rt::gather_rows(found, out_features, in_features, from, ids, count, to) ? 0 : -1;
}
