// Kernels of short_conv.h.

// An earlier row as one of the taps sees it: its u, or b and x of a row of this pass, whose product costs less than
// waiting for whoever has that row.
struct ConvTap {
  const float *weight, *u, *b, *x;
};

struct WholeLanes {
  VF load(const float* p) const { return vf_load(p); }
  void store(float* p, VF a) const { vf_store(p, a); }
};

struct FirstLanes {
  int count;
  VF load(const float* p) const { return vf_load_n(p, count); }
  void store(float* p, VF a) const { vf_store_n(p, a, count); }
};

// Goes to the row before the one at `place`, counting committed rows and then nodes of the tree. False: there is none.
EDGE_RT_INLINE bool step_back(const ConvPass& pass, int64_t* place) {
  const int64_t node = *place - pass.past, parent = node >= 0 ? pass.parents[node] : node - 1;
  *place = pass.past + parent;
  return *place >= 0;
}

EDGE_RT_INLINE ConvTap tap_of(const ConvPass& pass, int64_t place) {
  const int64_t row = place - pass.past - pass.done;
  if (row < 0) return {nullptr, pass.cache + pass.row_map[place] * pass.channels, nullptr, nullptr};
  const float* const b = pass.bcx + row * 3 * pass.channels;
  return {nullptr, nullptr, b, b + 2 * pass.channels};
}

// A row, and the taps before it: the farthest first.
struct ConvRow {
  const float *b, *gate, *x, *weight, *bias;
  float *u, *y;
  ConvTap before[kMaxTaps];
  int count;
};

template <class Lanes>
EDGE_RT_INLINE void conv_lanes(const ConvRow& row, int64_t c, Lanes lanes) {
  VF sum = row.bias != nullptr ? lanes.load(row.bias + c) : vf_zero();
  for (int i = 0; i < row.count; ++i) {
    const ConvTap& tap = row.before[i];
    const VF u = tap.u != nullptr ? lanes.load(tap.u + c) : vf_mul(lanes.load(tap.b + c), lanes.load(tap.x + c));
    sum = vf_fma(lanes.load(tap.weight + c), u, sum);
  }
  const VF u = vf_mul(lanes.load(row.b + c), lanes.load(row.x + c));
  lanes.store(row.u + c, u);
  lanes.store(row.y + c, vf_mul(lanes.load(row.gate + c), vf_fma(lanes.load(row.weight + c), u, sum)));
}

inline void conv_rows(const ConvPass& pass, int64_t begin, int64_t end) {
  const auto taps = static_cast<int>(pass.window);
  const int64_t channels = pass.channels;
  for (int64_t i = begin; i < end; ++i) {
    const float *const b = pass.bcx + i * 3 * channels, *const last = pass.weight + (taps - 1) * channels;
    ConvRow row{};
    row.b = b, row.gate = b + channels, row.x = b + 2 * channels;
    row.weight = last;
    row.bias = pass.bias;
    row.u = pass.cache + pass.place_of(i) * channels;
    row.y = pass.y + i * channels;
    ConvTap nearest[kMaxTaps];
    for (int64_t place = pass.past + pass.done + i; row.count < taps - 1 && step_back(pass, &place); ++row.count) {
      nearest[row.count] = tap_of(pass, place);
      nearest[row.count].weight = last - (row.count + 1) * channels;
    }
    for (int tap = 0; tap < row.count; ++tap) row.before[tap] = nearest[row.count - 1 - tap];
    int64_t c = 0;
    for (; c + 16 <= channels; c += 16) conv_lanes(row, c, WholeLanes{});
    if (c < channels) conv_lanes(row, c, FirstLanes{static_cast<int>(channels - c)});
  }
}

constexpr ShortConvKernels kShortConvKernels{conv_rows};
