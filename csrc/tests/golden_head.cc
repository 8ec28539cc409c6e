// Draft heads through the op: trees on record, with one and with several threads.
#include <cstdio>
#include <cstdlib>

#include "tests/check.h"
#include "tests/golden_node.h"
#include "tests/golden_ops.h"

namespace edge_rt::golden {
namespace {

struct HeadCase {
  const char* name;
  int64_t hidden, intermediate, vocabulary, head_rows, more_rows;
  int blocks;
  WeightFormat embedding, fc, gate_up, down, head;
  int32_t limits[3];
};

constexpr WeightFormat kW4M = WeightFormat::kW4M, kW4 = WeightFormat::kW4, kW8 = WeightFormat::kW8;
constexpr HeadCase kCases[] = {
    {"step", 64, 96, 300, 130, 21, 1, kW8, kW4M, kW4M, kW4M, kW8, {8, 8, 1}},
    {"all_tokens", 64, 96, 80, 33, 14, 1, kW8, kW4M, kW4M, kW4M, kW8, {64, 64, 1}},
    {"tree", 96, 160, 5000, 4500, 300, 1, kW8, kW4M, kW4M, kW4M, kW8, {64, 6, 4}},
    {"blocks", 64, 64, 200, 70, 0, 4, kW4, kW8, kW4, kW8, kW4, {30, 4, 8}},
    {"k_quants",
     256,
     256,
     200,
     100,
     17,
     2,
     WeightFormat::kW6K,
     WeightFormat::kW4K,
     WeightFormat::kW5K,
     WeightFormat::kW2K,
     WeightFormat::kW6K,
     {40, 5, 3}},
    {"floats",
     40,
     48,
     150,
     64,
     9,
     1,
     WeightFormat::kF16,
     WeightFormat::kF32,
     WeightFormat::kBF16,
     WeightFormat::kF16,
     WeightFormat::kF16,
     {20, 3, 3}},
};

fake::Attribute integer(const char* name, int64_t value) { return {name, fake::Attribute::kInteger, value, 0.0f, ""}; }
fake::Attribute text(const char* name, WeightFormat format) {
  return {name, fake::Attribute::kText, 0, 0.0f, format_name(format)};
}

Tensor tensor_of(const Matrix& matrix) {
  const PackedWeight packed = matrix.packed();
  return golden::tensor_of({packed.tiles, packed.blocks / facts(packed.format).unit_blocks, unit_bytes(packed.format)},
                           packed.data);
}

Tensor row_of(const std::vector<float>& values) {
  return golden::tensor_of({static_cast<int64_t>(values.size())}, values.data());
}
Tensor row_of(const std::vector<int32_t>& values) {
  return golden::tensor_of({static_cast<int64_t>(values.size())}, values.data());
}

void run_head(const HeadCase& it, const Report& report) {
  Random random(std::string("draft_head.") + it.name);
  const std::vector<float> state = random.uniform(it.hidden, 4.0f);
  int64_t token = random.below(static_cast<int>(it.vocabulary));
  std::vector<std::vector<float>> norms;
  for (int i = 0; i < 3 + it.blocks; ++i) norms.push_back(random.uniform(it.hidden, 2.0f));
  std::vector<Matrix> gate_ups, downs;
  const Matrix embedding(random, it.embedding, it.vocabulary, it.hidden), fc(random, it.fc, it.hidden, 2 * it.hidden);
  const Matrix head(random, it.head, it.head_rows, it.hidden), more(random, it.head, it.more_rows, it.hidden);
  for (int i = 0; i < it.blocks; ++i) {
    gate_ups.emplace_back(random, it.gate_up, 2 * it.intermediate, it.hidden);
    downs.emplace_back(random, it.down, it.hidden, it.intermediate);
  }
  // Every other id at first, in turn, so that the two lists are mixed.
  std::vector<int32_t> head_ids, more_ids;
  for (int32_t id = 0; id < it.vocabulary; ++id) {
    const bool is_more = id % 2 == 1 && static_cast<int64_t>(more_ids.size()) < it.more_rows;
    if (is_more) {
      more_ids.push_back(id);
    } else if (static_cast<int64_t>(head_ids.size()) < it.head_rows) {
      head_ids.push_back(id);
    }
  }
  std::vector<Tensor> inputs = {golden::tensor_of({1, it.hidden}, state.data()),
                                {abi::kInt64, {1}, &token},
                                tensor_of(embedding),
                                tensor_of(fc),
                                row_of(norms[0]),
                                row_of(norms[1]),
                                row_of(norms[2]),
                                tensor_of(head),
                                row_of(head_ids),
                                it.more_rows > 0 ? tensor_of(more) : Tensor{},
                                it.more_rows > 0 ? row_of(more_ids) : Tensor{},
                                golden::tensor_of({3}, it.limits)};
  for (int i = 0; i < it.blocks; ++i) {
    inputs.push_back(row_of(norms[static_cast<size_t>(3 + i)]));
    inputs.push_back(tensor_of(gate_ups[static_cast<size_t>(i)]));
    inputs.push_back(tensor_of(downs[static_cast<size_t>(i)]));
  }
  const std::vector<fake::Attribute> attributes = {integer("hidden", it.hidden),
                                                   integer("intermediate", it.intermediate),
                                                   integer("vocabulary", it.vocabulary),
                                                   integer("nodes", it.limits[0] + 2),
                                                   integer("blocks", it.blocks),
                                                   text("embedding_format", it.embedding),
                                                   text("fc_format", it.fc),
                                                   text("gate_up_format", it.gate_up),
                                                   text("down_format", it.down),
                                                   text("head_format", it.head)};
  const std::vector<int> outputs = {abi::kInt32, abi::kInt32, abi::kInt32, abi::kFloat, abi::kInt32};
  const auto found = run_node("DraftHead", attributes, inputs, outputs, 1);
  if (found != run_node("DraftHead", attributes, inputs, outputs, 3)) {
    std::fprintf(stderr, "draft_head.%s: three threads give other bits than one\n", it.name);
    std::exit(1);
  }
  CHECK(found[4].size() == 4 && found[4][0] > 0);  // nodes: none would hide all else
  Hash hash;
  for (const std::vector<uint8_t>& output : found) hash.add(output.data(), output.size());
  report(std::string("draft_head.") + it.name, hash.value());
}

}  // namespace

void run_heads(const Report& report) {
  for (const HeadCase& it : kCases) run_head(it, report);
}

}  // namespace edge_rt::golden
