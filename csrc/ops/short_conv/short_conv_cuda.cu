// ShortConv on a GPU: a thread a channel of a row. See short_conv.h for what is computed.
#include "gpu/cuda/device.h"
#include "ops/short_conv/short_conv_gpu.h"

namespace edge_rt::gpu {
namespace {

// u of the row at `place`: the cache has it, unless it is of this pass, where whoever has that row may not be done.
EDGE_RT_DEVICE float conv_u(const ConvPass& pass, int64_t begin, int64_t place, int64_t c) {
  if (place < begin) return pass.cache[pass.row_map[place] * pass.channels + c];
  const float* const b = pass.bcx + (place - begin) * 3 * pass.channels + c;
  return mul(b[0], b[2 * pass.channels]);
}

}  // namespace

// Grid: rows, and stretches of as many channels as there are threads.
EDGE_RT_KERNEL(short_conv_rows, kConvThreads, ConvArgs) {
  EDGE_RT_SHARED int64_t before[kMaxTaps];  // places of the rows before the row, the nearest first
  EDGE_RT_SHARED int count;
  const ConvPass& pass = args.pass;
  const int64_t past = *args.past, begin = past + pass.done, own = begin + block_x(), channels = pass.channels;
  if (thread() == 0) {
    count = 0;
    for (int64_t place = own; count < pass.window - 1; ++count) {
      const int64_t node = place - past;
      place = past + (node >= 0 ? pass.parents[node] : node - 1);
      if (place < 0) break;
      before[count] = place;
    }
  }
  barrier();
  const int64_t c = int64_t{block_y()} * kConvThreads + thread();
  if (c >= channels) return;
  const float* weight = pass.weight + (pass.window - 1 - count) * channels + c;
  float sum = pass.bias != nullptr ? pass.bias[c] : 0.0f;
  for (int i = count - 1; i >= 0; --i, weight += channels) sum = fma(*weight, conv_u(pass, begin, before[i], c), sum);
  const float u = conv_u(pass, begin, own, c);
  pass.cache[pass.row_map[own] * channels + c] = u;
  const float gate = pass.bcx[(int64_t{block_x()} * 3 + 1) * channels + c];
  pass.y[block_x() * channels + c] = mul(gate, fma(*weight, u, sum));
}

}  // namespace edge_rt::gpu
