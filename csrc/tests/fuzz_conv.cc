// Calls of ShortConv: passes over a cache, plain and as trees, over rows of the cache in any order.
#include <algorithm>

#include "ops/short_conv/short_conv.h"
#include "tests/fuzz_parts.h"

namespace edge_rt::fuzz {
namespace {

constexpr const char *kOne = "good, one sequence", *kRing = "good, fewer rows than positions",
                     *kSeveral = "good, several sequences", *kDone = "good, nodes of earlier passes";

RowsShape any_shape(Random& random, int64_t taps) {
  RowsShape shape{};
  const int64_t kind = random.below(4), sequences = kind % 3 == 0 ? random.between(2, 6) : 1;
  for (int64_t i = 0; i < sequences; ++i) {
    shape.sequences.push_back({random.one_in(2) ? random.between(1, 3) : random.size(40), random.below(40)});
    const int64_t most = std::min(shape.first().past, shape.sequences.back().past);
    if (i > 0 && random.one_in(2)) shape.sequences.back().shared = random.below(most + 1);
  }
  make_room(shape, random);
  if (kind == 1 && shape.first().past > taps) make_it_a_ring(shape, taps, random);
  return shape;
}

// All bits set, which is no number: what is not committed, or no row sees, must not be looked at.
Input make_cache(Random& random, const RowsShape& shape, int64_t channels, int64_t taps, const Input& row_map) {
  Input cache = floats(random, {shape.capacity, channels}, -2.0f, 2.0f), drawn = cache;
  std::fill(cache.bytes.begin(), cache.bytes.end(), uint8_t{0xff});
  const auto row_bytes = static_cast<int64_t>(sizeof(float)) * channels;
  for (size_t b = 0; b < shape.sequences.size(); ++b) {
    const int64_t past = shape.sequences[b].past;
    for (int64_t i = std::max<int64_t>(0, past + 1 - taps - (shape.is_ring() ? 0 : 9)); i < past; ++i) {
      const int64_t at = row_map.get<int32_t>(static_cast<int64_t>(b) * shape.positions + i) * row_bytes;
      std::copy_n(drawn.bytes.begin() + at, row_bytes, cache.bytes.begin() + at);
    }
  }
  cache.alignment = random.pick<size_t>({64, 16, 4});
  return cache;
}

Case make(Random& random) {
  Case call;
  call.op = "ShortConv";
  const int64_t taps = random.one_in(8) ? kMaxTaps : random.size(6), channels = random.size(100);
  const RowsShape shape = any_shape(random, taps);
  const bool has_done = shape.sequences.size() == 1 && !shape.is_ring() && random.one_in(2);
  const int64_t done = has_done ? random.between(0, std::min<int64_t>(shape.first().past, 9)) : 0;
  call.inputs.resize(kConvSequenceRows + 1);
  call.inputs[kRowsIn] = floats(random, {shape.rows(), 3 * channels}, -2.0f, 2.0f);
  add_rows(call, random, shape, done, kConvSequenceRows);
  call.inputs[kCache] = make_cache(random, shape, channels, taps, call.inputs[kRowMap]);
  call.inputs[kWeight] = floats(random, {taps, channels}, -1.0f, 1.0f);
  call.inputs[kBias] = floats(random, {channels}, -1.0f, 1.0f);
  call.inputs[kBias].present = random.one_in(2);
  call.outputs = {{shape.rows(), channels}};
  call.output_types = {abi::kFloat};
  call.in_place = kCache;
  int64_t row = 0;
  for (const int32_t at : rows_written(call, shape)) {
    const size_t begin = static_cast<size_t>(at * channels) * sizeof(float);
    call.writable.push_back({begin, begin + static_cast<size_t>(channels) * sizeof(float)});
    Written written{begin, {}};
    for (int64_t c = 0; c < channels; ++c) {
      const Input& bcx = call.inputs[kRowsIn];
      const float u = bcx.get<float>(row * 3 * channels + c) * bcx.get<float>((row * 3 + 2) * channels + c);
      const auto* const bytes = reinterpret_cast<const uint8_t*>(&u);
      written.bytes.insert(written.bytes.end(), bytes, bytes + sizeof u);
    }
    call.written.push_back(std::move(written));
    ++row;
  }
  call.features = {shape.is_ring() ? kRing : done > 0 ? kDone : shape.sequences.size() > 1 ? kSeveral : kOne};
  return call;
}

bool wrong_taps(Case& call, Random& random) {
  Input& weight = call.inputs[kWeight];
  if (random.one_in(3)) {
    weight.dims[1] = 0;
  } else {
    weight.dims[0] = random.pick<int64_t>({0, kMaxTaps + 1});
  }
  weight.resize();
  call.words = {"weight is", "bcx"};
  return true;
}

}  // namespace

Subject short_conv() {
  Subject subject{"ShortConv", make, {}, {{kRowsIn, {1}}, {kCache, {1}}, {kPast, {0}}, {kRowMap, {0}}}, {}, {}, {}, {}};
  subject.required = {kRowsIn, kCache, kPast, kRowMap, kParents, kWeight, kConvSequenceRows};
  subject.checked.push_back({kBias, {0}});
  subject.checked.push_back({kConvSequenceRows, {0}});
  subject.own_mistakes = row_mistakes();
  subject.own_mistakes.push_back({"weight out of range", wrong_taps});
  subject.features = {kOne, kRing, kSeveral, kDone};
  subject.take_apart = take_apart;
  return subject;
}

}  // namespace edge_rt::fuzz
