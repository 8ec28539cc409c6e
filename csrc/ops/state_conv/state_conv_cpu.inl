// Kernels of state_conv.h.

// The row before the one at `place`: rows of the pass count from 0, those before it from -1 downwards. nullptr: the
// text begins behind it.
inline const float* conv_row_before(const StateConvPass& pass, int64_t* place) {
  *place = *place > 0 ? pass.parents[*place] : *place - 1;
  if (*place >= 0) return pass.x + *place * pass.stride;
  const int64_t back = -*place;  // 1: the last row before the pass
  if (back > pass.past) return nullptr;
  if (back <= pass.advance_count) return pass.accepted(pass.advance_count - back);
  return pass.read + (pass.taps - 1 - (back - pass.advance_count)) * pass.channels;
}

template <class Lanes>
EDGE_RT_INLINE void state_conv_lanes(const StateConvPass& pass, const float* const* rows, int64_t count, float* y,
                                     int64_t c, Lanes lanes) {
  VF sum = pass.bias != nullptr ? lanes.load(pass.bias + c) : vf_zero();
  const float* weight = pass.weight + (pass.taps - count) * pass.channels + c;
  for (int64_t i = 0; i < count; ++i, weight += pass.channels) {
    sum = vf_fma(lanes.load(weight), lanes.load(rows[i] + c), sum);
  }
  lanes.store(y + c, vf_silu(sum));
}

inline void state_conv_rows(const StateConvPass& pass, int64_t begin, int64_t end) {
  const int64_t channels = pass.channels;
  const auto bytes = static_cast<size_t>(channels) * sizeof(float);
  for (int64_t i = begin; i < end; ++i) {
    // The farthest first, and last the row itself.
    const float* rows[kMaxStateTaps];
    int64_t first = pass.taps - 1, place = i;
    rows[first] = pass.x + i * pass.stride;
    for (const float* row; first > 0 && (row = conv_row_before(pass, &place)) != nullptr;) rows[--first] = row;
    float* const y = pass.y + i * channels;
    const int64_t count = pass.taps - first;
    int64_t c = 0;
    for (; c + 16 <= channels; c += 16) state_conv_lanes(pass, rows + first, count, y, c, WholeLanes{});
    if (c < channels) {
      state_conv_lanes(pass, rows + first, count, y, c, FirstLanes{static_cast<int>(channels - c)});
    }
    if (i >= pass.certain) {
      std::memcpy(pass.transition(pass.written, i - pass.certain), pass.x + i * pass.stride, bytes);
    }
  }
  if (begin > 0) return;
  // The last rows of the text, behind the certain ones.
  int64_t place = pass.certain;
  for (int64_t tap = pass.taps - 2; tap >= 0; --tap) {
    const float* row = nullptr;
    if (place > 0) {
      --place;
      row = pass.x + place * pass.stride;
    } else {
      row = conv_row_before(pass, &place);
    }
    if (row == nullptr) break;
    std::memcpy(pass.written + tap * channels, row, bytes);
  }
}

constexpr StateConvKernels kStateConvKernels{state_conv_rows};
