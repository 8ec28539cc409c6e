// Calls of SpecAttention: passes over a cache, plain and as trees, over rows of the cache in any order.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/fuzz_parts.h"

namespace edge_rt::fuzz {
namespace {

constexpr int64_t kMostProducts = 75000;  // of a call: it should take a millisecond or two
constexpr int64_t kMostDeepProducts = 100000;

constexpr const char *kOneSpan = "good, one span", *kSpans = "good, several spans",
                     *kCutSpan = "good, window that cuts a span", *kTreeOverEnd = "good, tree over a span's end",
                     *kPromptOverEnd = "good, prompt over a span's end", *kRing = "good, fewer rows than positions",
                     *kRingBehindSpan = "good, such rows and spans not seen", *kSeveral = "good, several sequences",
                     *kShared = "good, sequences that begin alike", *kSeveralSpans = "good, several of several spans";
constexpr int64_t kMostSequences = 8;

std::string count_feature(int64_t sequences) { return "good, sequences: " + std::to_string(sequences); }
std::string format_feature(int64_t format) { return "good, several in format " + std::to_string(format); }

KvCoding coding_of(const AttentionShape& shape, int64_t plane) {
  return kKvFormats[shape.format].coding(plane < shape.kv_heads ? 0 : 1);
}

// The next size at which heads * dim is a multiple of 32.
int64_t in_blocks(int64_t heads, int64_t dim) {
  const int64_t step = std::max<int64_t>(2, kBlock / std::gcd(heads, int64_t{kBlock}));
  return (dim + step - 1) / step * step;
}

// A few rows behind several spans, often at the end of one.
SequenceShape deep_rows(const AttentionShape& shape, Random& random, int64_t share) {
  SequenceShape rows{};
  rows.past = kKvSpan * random.between(1, 3) - random.pick<int64_t>({0, 1, 1, 1, 2});
  if (random.one_in(3)) rows.past = random.between(200, 900);
  // A head takes at least 16 lanes.
  const int64_t products = share * shape.heads * std::max<int64_t>(shape.dim, 16) * rows.past;
  rows.rows = std::clamp<int64_t>(kMostDeepProducts / products, share > 1 ? 1 : 3, 3 + random.size(37));
  return rows;
}

SequenceShape any_rows(const AttentionShape& shape, Random& random, int64_t share) {
  SequenceShape rows{};
  rows.rows = random.one_in(40) ? random.between(41, 80) : random.size(40);
  rows.past = random.pick<int64_t>({0, random.below(20), random.below(64), 63, 64, random.below(300)});
  const int64_t head_products = share * shape.heads * shape.dim;
  rows.rows = std::clamp<int64_t>(kMostProducts / (head_products * (rows.past / 2 + 8)), 1, rows.rows);
  rows.past = std::min<int64_t>(rows.past, std::max<int64_t>(kMostProducts / (head_products * rows.rows), 4));
  return rows;
}

// Others beside the first, which may begin with its committed rows.
void add_sequences(AttentionShape& shape, Random& random, bool is_deep) {
  const int64_t count = random.between(2, kMostSequences);
  shape.sequences.clear();
  for (int64_t i = 0; i < count; ++i) {
    SequenceShape rows = is_deep && random.one_in(3) ? deep_rows(shape, random, 2) : any_rows(shape, random, count);
    if (random.one_in(2)) rows.rows = 1;
    const int64_t most = i == 0 ? 0 : std::min(rows.past, shape.first().past);
    rows.shared = random.one_in(2) ? random.below(most + 1) : 0;
    shape.sequences.push_back(rows);
  }
}

// What a committed row may hold.
void fill_row(Random& random, const AttentionShape& shape, int64_t row, Input* cache) {
  for (int64_t plane = 0; plane < 2 * shape.kv_heads; ++plane) {
    const std::vector<ByteRange> at = places_in_cache(shape, plane, row);
    const KvCoding coding = coding_of(shape, plane);
    const bool has_minimums = coding >= kCodedNibbles;
    const auto begin = static_cast<int64_t>(at[0].begin);
    if (has_minimums) {
      for (size_t part = 0; part + 1 < at.size(); ++part) {
        for (size_t b = at[part].begin; b < at[part].end; ++b) {
          cache->bytes[b] = static_cast<uint8_t>(random.below(256));
        }
      }
    }
    for (int64_t d = 0; d < shape.dim && !has_minimums; ++d) {
      const auto place = static_cast<size_t>(begin);
      if (coding == kCodedF32) {
        const float value = random.uniform(-2.0f, 2.0f);
        std::memcpy(&cache->bytes[place + static_cast<size_t>(d) * 4], &value, sizeof value);
      } else if (coding == kCodedF16) {
        const uint16_t value = moderate_half(random);
        std::memcpy(&cache->bytes[place + static_cast<size_t>(d) * 2], &value, sizeof value);
      } else {
        cache->set(begin + d, static_cast<int8_t>(random.between(-127, 127)));
      }
    }
    // A scale is positive and small.
    for (size_t b = at.back().begin; b < at.back().end; b += 2) {
      const bool is_minimum = has_minimums && (b - at.back().begin) % 4 == 2;
      const auto half = static_cast<uint16_t>(is_minimum ? moderate_half(random) : moderate_half(random) % 0x2000);
      std::memcpy(&cache->bytes[b], &half, sizeof half);
    }
  }
}

// All bits set, which is no number as float or half: what is not committed, or a ring has lost, must not be looked at.
Input make_cache(Random& random, const AttentionShape& shape, const Input& row_map) {
  Input cache = bytes(random, {0});
  cache.dims = {2, shape.kv_heads, shape.capacity, shape.row_bytes};
  cache.bytes.assign(static_cast<size_t>(cache.count()), 0xff);
  for (size_t b = 0; b < shape.sequences.size(); ++b) {
    const int64_t begin = static_cast<int64_t>(b) * shape.positions;
    for (int64_t i = std::max(shape.first_seen(), shape.sequences[b].shared); i < shape.sequences[b].past; ++i) {
      fill_row(random, shape, row_map.get<int32_t>(begin + i), &cache);
    }
  }
  const auto least = static_cast<size_t>(kKvFormats[shape.format].alignment);
  cache.alignment = std::max(least, random.pick<size_t>({64, 64, 16, 4, 2}));
  return cache;
}

// Each may be there or not. A balance is well above 0, and feedback far from adding up.
void add_key_constants(Case& call, Random& random, const AttentionShape& shape, float softcap, int first) {
  const auto at = [&](int i) -> Input& { return call.inputs[static_cast<size_t>(first + i)]; };
  call.inputs.resize(std::max<size_t>(call.inputs.size(), static_cast<size_t>(first) + 3));
  at(0) = floats(random, {shape.kv_heads, shape.dim}, -2.0f, 2.0f);
  at(1) = floats(random, {shape.kv_heads, shape.dim}, 0.25f, 4.0f);
  at(2) = floats(random, {shape.kv_heads, shape.dim, shape.dim}, -0.05f, 0.05f);
  for (int64_t i = 0; i < at(2).count(); ++i) {
    if (i % shape.dim <= i / shape.dim % shape.dim) at(2).set(i, 0.0f);
  }
  for (int i = 0; i < 3; ++i) at(i).present = random.one_in(2);
  if (call.inputs[kSinks].present || softcap != 0) at(0).present = false;
}

// The first position that the last row attends to is not the first of a span.
bool cuts_span(int64_t window, int64_t last) {
  return window > 0 && window <= last && (last + 1 - window) % kKvSpan != 0;
}

const char* feature_of(const AttentionShape& shape, const Input& parents, int64_t window, int64_t last) {
  if (last < kKvSpan) return kOneSpan;
  bool is_chain = true;
  for (int64_t i = 0; i < shape.first().rows; ++i) is_chain = is_chain && parents.get<int32_t>(i) == i - 1;
  if (shape.first().past / kKvSpan != last / kKvSpan) return is_chain ? kPromptOverEnd : kTreeOverEnd;
  return cuts_span(window, last) ? kCutSpan : kSpans;
}

// Where values come from; most often from qkv.
enum ValueKind : int { kSharedCache, kKeys };

// Lets a call read rows that another layer has appended.
void share_cache(Case& call, Random& random, const AttentionShape& shape) {
  call.set("shares_cache", int64_t{1});
  call.inputs[kKeyNorm].present = false;
  for (const int32_t row : rows_written(call, shape)) fill_row(random, shape, row, &call.inputs[kCache]);
  call.writable.clear();
}

// Case::attribute would add it.
bool is_clipped(const Case& call) {
  return std::any_of(call.attributes.begin(), call.attributes.end(),
                     [](const fake::Attribute& attribute) { return attribute.name == "clip"; });
}

Case make(Random& random) {
  Case call;
  call.op = "SpecAttention";
  const AttentionShape shape = any_attention(random, false);
  const ValueKind kind = static_cast<ValueKind>(random.below(8));
  const int64_t parts = kind == kSharedCache ? 0 : kind == kKeys ? 1 : 2;
  const int64_t width = shape.width() - (2 - parts) * shape.kv_heads * shape.dim;
  call.inputs = {floats(random, {shape.rows(), width}, -3.0f, 3.0f)};
  add_attention(call, random, shape, kKeyConstants);
  const bool is_normed = parts > 0 && random.one_in(4);
  if (is_normed) call.set("norms_values", int64_t{1});
  if (kind == kKeys) call.set("values_are_keys", int64_t{1});
  if (kind == kSharedCache) share_cache(call, random, shape);
  // Float values are copied as they are.
  const bool is_copied = shape.format == kKvF32 && parts > 0 && !is_normed && !is_clipped(call);
  int64_t i = 0;
  for (const int32_t row : is_copied ? rows_written(call, shape) : std::vector<int32_t>{}) {
    for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
      const size_t at = places_in_cache(shape, shape.kv_heads + kv, row)[0].begin;
      const int64_t value = ((i + 1) * width - (shape.kv_heads - kv) * shape.dim) * 4;
      const uint8_t* from = call.inputs[kRowsIn].bytes.data() + value;
      call.written.push_back({at, std::vector<uint8_t>(from, from + shape.dim * 4)});
    }
    ++i;
  }
  call.outputs = {{shape.rows(), shape.heads * shape.dim}};
  call.output_types = {abi::kFloat};
  return call;
}

}  // namespace

AttentionShape any_attention(Random& random, bool is_in_blocks) {
  AttentionShape shape;
  const bool is_deep = random.one_in(3);
  shape.kv_heads = random.between(1, is_deep ? 2 : 3);
  const int64_t most_group = is_deep ? 3 : random.one_in(8) ? 12 : 4;
  shape.heads = shape.kv_heads * random.between(1, most_group);
  const int64_t half_dim = random.one_in(100) ? random.between(80, kMaxHeadDim / 2) : random.size(160) / 2;
  shape.dim = 2 * (is_deep ? random.between(1, 8) : std::max<int64_t>(1, half_dim));
  const bool is_prompt = is_deep && random.one_in(8);
  if (is_prompt) shape.heads = shape.kv_heads = 1;
  if (is_in_blocks) shape.dim = in_blocks(shape.heads, shape.dim);
  if (is_prompt) {
    shape.sequences = {{random.between(200, 300), random.below(120)}};
  } else {
    shape.sequences = {is_deep ? deep_rows(shape, random, 1) : any_rows(shape, random, 1)};
  }
  shape.ring_window = 0;
  const int64_t kind = random.below(4);
  if (kind < (is_deep ? 1 : 2) && !is_prompt) add_sequences(shape, random, is_deep);
  make_room(shape, random);
  if (const int64_t past = shape.first().past; kind == 2 && past > 1) {
    make_it_a_ring(shape, random.one_in(2) ? random.size(past) : random.between(1, past), random);
  }
  shape.format = static_cast<KvFormatId>(random.below(kKvFormatCount));
  const KvFormat& format = kKvFormats[shape.format];
  shape.row_bytes = kv_row_bytes(format, shape.dim) + format.alignment * (random.one_in(3) ? random.below(9) : 0);
  shape.has_gates = random.one_in(4);
  shape.row_bytes += (format.alignment - shape.row_bytes % format.alignment) % format.alignment;
  return shape;
}

std::vector<ByteRange> places_in_cache(const AttentionShape& shape, int64_t plane, int64_t row) {
  const auto plane_bytes = [&](int64_t of) {
    return shape.capacity * kv_row_bytes(kKvRows[coding_of(shape, of)], shape.dim);
  };
  int64_t base = 0;
  for (int64_t before = 0; before < plane; ++before) base += plane_bytes(before);
  const KvRow& coded = kKvRows[coding_of(shape, plane)];
  const int64_t width = kv_code_bytes(coded, shape.dim), extra = coded.bytes_per_group * kv_groups(shape.dim);
  std::vector<ByteRange> places;
  const auto add = [&](int64_t begin, int64_t size) {
    places.push_back({static_cast<size_t>(begin), static_cast<size_t>(begin + size)});
  };
  for (int part = 0; part < std::max(1, coded.nibble_planes); ++part) {
    add(base + (part * shape.capacity + row) * width, width);
  }
  add(base + shape.capacity * kv_all_code_bytes(coded, shape.dim) + row * extra, extra);
  return places;
}

void add_attention(Case& call, Random& random, const AttentionShape& shape, int key_constants) {
  call.inputs.resize(std::max<size_t>(call.inputs.size(), kSinks + 1));
  const auto sequences = static_cast<int64_t>(shape.sequences.size());
  const int sequence_rows = sequence_rows_of(key_constants);
  // The last committed rows of one sequence may be nodes of the tree instead.
  const bool has_done = sequences == 1 && !shape.is_ring() && random.one_in(2);
  const int64_t done = has_done ? random.between(0, std::min<int64_t>(shape.first().past, 9)) : 0;
  call.inputs.resize(std::max(call.inputs.size(), static_cast<size_t>(sequence_rows) + 1));
  const std::vector<int64_t> last_of = add_rows(call, random, shape, done, sequence_rows);
  const int64_t last = *std::max_element(last_of.begin(), last_of.end());
  const auto many_spans = std::count_if(last_of.begin(), last_of.end(), [](int64_t at) { return at >= kKvSpan; });
  call.inputs[kCache] = make_cache(random, shape, call.inputs[kRowMap]);
  // Other layers' formats are not this node's business.
  const int64_t layer = random.below(3), layers = layer + random.between(1, 3);
  call.inputs[kFormats] = int32s({layers});
  for (int64_t i = 0; i < layers; ++i) {
    call.inputs[kFormats].set(i, i == layer ? static_cast<int32_t>(shape.format) : random.pick({-1, 99, 0, INT32_MIN}));
  }
  const int64_t half = random.one_in(2) ? shape.dim / 2 : random.between(0, shape.dim / 2);
  const int64_t positions = last + 1 + (random.one_in(2) ? 0 : random.below(9));
  call.inputs[kCos] = floats(random, {positions, half}, -1.0f, 1.0f);
  call.inputs[kSin] = floats(random, {positions, half}, -1.0f, 1.0f);
  const bool of_rows = !shape.has_gates && random.one_in(3);
  call.inputs[kQueryNorm] = floats(random, {of_rows ? shape.heads * shape.dim : shape.dim}, -2.0f, 2.0f);
  call.inputs[kKeyNorm] = floats(random, {of_rows ? shape.kv_heads * shape.dim : shape.dim}, -2.0f, 2.0f);
  if (!of_rows && random.one_in(3)) {
    call.set("norm_after_rotation", random.below(2));
  } else if (random.one_in(4)) {
    call.set("clip", random.uniform(0.1f, 2.0f));
  }
  if (shape.has_gates) call.set("gated", int64_t{1});
  if (random.one_in(3)) call.set("rotate", random.below(2));
  call.inputs[kSinks] = floats(random, {shape.heads}, -3.0f, 3.0f);
  for (int i = kQueryNorm; i <= kSinks; ++i) call.inputs[static_cast<size_t>(i)].present = random.one_in(3);
  call.set("num_heads", shape.heads);
  call.set("num_kv_heads", shape.kv_heads);
  call.set("head_dim", shape.dim);
  call.set("layer", layer);
  call.set("scale", 1.0f / std::sqrt(static_cast<float>(shape.dim)));
  const int64_t end = shape.first().used();
  int64_t window = 0;
  if (shape.is_ring()) {
    window = shape.ring_window;
    call.set("window", window);
  } else if (random.one_in(2)) {
    window = random.pick<int64_t>({0, 1, random.size(end), random.between(1, end), random.between(1, end),
                                   kKvSpan + random.between(-1, 1), end + 5, 1 << 28, INT64_MAX});
    call.set("window", window);
  }
  float softcap = 0.0f;
  if (random.one_in(3)) call.set("softcap", softcap = random.pick({0.0f, 0.5f, 30.0f}));
  if (random.one_in(2)) call.set("interleaved", random.below(2));
  if (random.one_in(2)) call.set("epsilon", random.pick({1e-6f, 1e-5f, 0.25f}));
  add_key_constants(call, random, shape, softcap, key_constants);
  const auto query_scale = static_cast<size_t>(query_scale_of(key_constants));
  call.inputs[query_scale] = floats(random, {positions}, -2.0f, 2.0f);
  call.inputs[query_scale].present = random.one_in(3);
  if (sequences == 1) {
    call.features = {feature_of(shape, call.inputs[kParents], window, last)};
  } else {
    const auto shares = [](const SequenceShape& sequence) { return sequence.shared > 0; };
    call.features = {many_spans > 1 ? kSeveralSpans : kSeveral};
    if (std::any_of(shape.sequences.begin(), shape.sequences.end(), shares)) call.features.emplace_back(kShared);
    call.features.push_back(count_feature(sequences));
    call.features.push_back(format_feature(shape.format));
  }
  if (shape.is_ring()) call.features.emplace_back(shape.first_mapped() > 0 ? kRingBehindSpan : kRing);
  call.in_place = kCache;
  for (const int32_t row : rows_written(call, shape)) {
    for (int64_t plane = 0; plane < 2 * shape.kv_heads; ++plane) {
      const std::vector<ByteRange> at = places_in_cache(shape, plane, row);
      call.writable.insert(call.writable.end(), at.begin(), at.end());
    }
  }
}

std::vector<std::string> attention_features() {
  std::vector<std::string> features = {kOneSpan, kSpans,          kCutSpan, kTreeOverEnd, kPromptOverEnd,
                                       kRing,    kRingBehindSpan, kSeveral, kShared,      kSeveralSpans};
  for (int64_t count = 2; count <= kMostSequences; ++count) features.push_back(count_feature(count));
  for (int64_t format = 0; format < kKvFormatCount; ++format) features.push_back(format_feature(format));
  return features;
}

Subject attention_subject(const char* op, std::function<Case(Random&)> make_call, int key_constants) {
  Subject subject{op,
                  std::move(make_call),
                  {},
                  attention_dims(key_constants),
                  {},
                  {kCache},
                  attention_mistakes(key_constants),
                  attention_features()};
  for (int i = kRowsIn; i < kQueryNorm; ++i) subject.required.push_back(i);
  subject.required.push_back(sequence_rows_of(key_constants));
  subject.take_apart = take_apart;
  subject.checked.push_back({kRowsIn, {1}});
  subject.required_attributes = {"num_heads", "num_kv_heads", "head_dim", "layer", "scale"};
  return subject;
}

Subject spec_attention() { return attention_subject("SpecAttention", make, kKeyConstants); }

}  // namespace edge_rt::fuzz
