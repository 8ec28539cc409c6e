// Rows of a packed matrix as a packed matrix of their own; what is stored is copied, so products have the same bits.
#pragma once

#include <cstdint>

#include "ops/quant_linear/weight_format.h"

namespace edge_rt {

// Bytes of a tile of rows of so many inputs; -1 if rows of the format cannot have them, or have codes outside tiles.
int64_t tile_bytes(WeightFormat format, int64_t inputs);

// A matrix of `rows` rows and `inputs` inputs in tiles at `from`; `to` has room for `count` rows, in whole tiles. Rows
// behind the last one are zero. Ids may come in any order and more than once. False, and nothing is written, if the
// sizes do not fit the format, or an id is not 0 ... rows - 1.
bool gather_rows(WeightFormat format, int64_t rows, int64_t inputs, const uint8_t* from, const int32_t* ids,
                 int64_t count, uint8_t* to);

}  // namespace edge_rt
