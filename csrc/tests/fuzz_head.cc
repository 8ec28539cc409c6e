// Calls of DraftHead; its trees are checked for what every tree must be.
#include <algorithm>
#include <cmath>
#include <set>

#include "ops/draft_head/draft_head.h"
#include "tests/fuzz_parts.h"

namespace edge_rt::fuzz {
namespace {

enum HeadInput : size_t {
  kHidden,
  kToken,
  kEmbedding,
  kFc,
  kStateNorm,
  kTokenNorm,
  kOutputNorm,
  kHead,
  kHeadIds,
  kMoreHead,
  kMoreIds,
  kLimits,
  kFirstBlock
};
constexpr size_t kInputCount = kFirstBlock + 3 * kMaxHeadBlocks;

template <class T>
T element(const std::vector<uint8_t>& bytes, int64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

std::set<int32_t> ids_of(const Case& call, size_t input) {
  std::set<int32_t> ids;
  if (!call.inputs[input].present) return ids;
  for (int64_t i = 0; i < call.inputs[input].count(); ++i) ids.insert(call.inputs[input].get<int32_t>(i));
  return ids;
}

std::string verify(const Case& call, const Outputs& outputs) {
  const auto limit = [&](int64_t i) { return call.inputs[kLimits].get<int32_t>(i); };
  std::set<int32_t> allowed = ids_of(call, kHeadIds);
  for (const int32_t id : ids_of(call, kMoreIds)) allowed.insert(id);
  const int32_t count = element<int32_t>(outputs[4], 0), rows = static_cast<int32_t>(allowed.size());
  // Of finite numbers every row is a guess.
  if (count < std::min({limit(0), limit(1), rows}) || count > limit(0)) return "the number of nodes is wrong";
  std::vector<double> totals;
  std::set<std::pair<int32_t, int32_t>> edges;
  std::vector<int> children(static_cast<size_t>(count) + 1);
  for (int32_t i = 0; i < count; ++i) {
    const auto id = element<int32_t>(outputs[0], i), parent = element<int32_t>(outputs[1], i);
    const auto depth = element<int32_t>(outputs[2], i);
    const auto log_prob = element<float>(outputs[3], i);
    if (parent < -1 || parent >= i) return "a parent does not come first";
    if (allowed.count(id) == 0) return "a token has no row";
    if (!edges.insert({parent, id}).second) return "siblings are alike";
    if (++children[static_cast<size_t>(parent + 1)] > limit(1)) return "a node has too many children";
    if (depth != (parent < 0 ? 1 : element<int32_t>(outputs[2], parent) + 1) || depth > limit(2))
      return "a depth is wrong";
    if (!(log_prob <= 0)) return "a log probability is above 0";
    totals.push_back(log_prob + (parent < 0 ? 0 : totals[static_cast<size_t>(parent)]));
    if (i > 0 && totals[static_cast<size_t>(i)] > totals[static_cast<size_t>(i - 1)] + 1e-3) return "not best first";
  }
  const int64_t nodes = call.outputs[0][0];
  for (int64_t i = count; i < nodes; ++i) {
    if (element<int32_t>(outputs[0], i) != -1 || element<int32_t>(outputs[1], i) != -1 ||
        element<int32_t>(outputs[2], i) != 0 || element<float>(outputs[3], i) != 0) {
      return "a place behind the tree is not empty";
    }
  }
  return "";
}

// Of `count` ids below `vocabulary`, ascending, those of `not_these` left out.
Input ascending(Random& random, int64_t count, int64_t vocabulary, const std::set<int32_t>& not_these) {
  std::set<int32_t> ids;
  for (int64_t tries = 0; tries < 4 * count && static_cast<int64_t>(ids.size()) < count; ++tries) {
    const auto id = static_cast<int32_t>(random.below(vocabulary));
    if (not_these.count(id) == 0) ids.insert(id);
  }
  Input input = int32s({static_cast<int64_t>(ids.size())});
  input.alignment = random.pick<size_t>({64, 4});
  int64_t at = 0;
  for (const int32_t id : ids) input.set(at++, id);
  return input;
}

WeightFormat any_format(Random& random, bool is_wide) {
  for (;;) {
    const auto format = static_cast<WeightFormat>(random.below(kWeightFormatCount));
    if (is_wide || unit_inputs(format) == kBlock) return format;
  }
}

Case make(Random& random) {
  Case call;
  call.op = "DraftHead";
  const bool is_wide = random.one_in(6);
  const int64_t hidden = is_wide ? 256 : kBlock * random.between(1, 3);
  const int64_t intermediate = is_wide ? 256 : kBlock * random.between(1, 4);
  const int64_t vocabulary = random.one_in(40) ? 9000 : random.size(120);
  const int64_t blocks = random.between(1, random.one_in(4) ? kMaxHeadBlocks : 1);
  const int64_t nodes = random.one_in(10) ? kMaxHeadNodes : random.between(1, 24);
  WeightFormat formats[5];
  const char* const names[] = {"embedding_format", "fc_format", "gate_up_format", "down_format", "head_format"};
  for (int i = 0; i < 5; ++i) {
    formats[i] = any_format(random, is_wide);
    call.set(names[i], format_name(formats[i]));
  }
  call.set("hidden", hidden);
  call.set("intermediate", intermediate);
  call.set("vocabulary", vocabulary);
  call.set("nodes", nodes);
  if (blocks > 1 || random.one_in(2)) call.set("blocks", blocks);
  if (random.one_in(2)) call.set("epsilon", random.pick({1e-6f, 1e-5f, 0.25f}));
  call.inputs.resize(kInputCount);
  for (Input& input : call.inputs) input.present = false;
  const auto set = [&](size_t at, Input input) { call.inputs[at] = std::move(input); };
  set(kHidden, floats(random, {1, hidden}, -3.0f, 3.0f));
  Input token = int64s({1});
  token.alignment = 8;
  token.set(0, random.below(vocabulary));
  set(kToken, token);
  set(kEmbedding, packed_matrix(random, {formats[0], vocabulary, hidden}));
  set(kFc, packed_matrix(random, {formats[1], hidden, 2 * hidden}));
  for (const size_t norm : {kStateNorm, kTokenNorm, kOutputNorm}) set(norm, floats(random, {hidden}, -2.0f, 2.0f));
  set(kHeadIds, ascending(random, random.between(1, vocabulary), vocabulary, {}));
  set(kHead, packed_matrix(random, {formats[4], call.inputs[kHeadIds].count(), hidden}));
  if (random.one_in(2)) {
    set(kMoreIds, ascending(random, random.size(40) - 1, vocabulary, ids_of(call, kHeadIds)));
    const int64_t rows = call.inputs[kMoreIds].count();
    // A matrix without rows has no tiles.
    Input more = packed_matrix(random, {formats[4], std::max<int64_t>(rows, 1), hidden});
    if (rows == 0) more.dims[0] = 0;
    more.resize();
    set(kMoreHead, more);
    call.features.emplace_back(rows > 0 ? "more rows" : "no more rows");
  }
  Input limits = int32s({3});
  limits.alignment = random.pick<size_t>({64, 4});
  limits.set(0, static_cast<int32_t>(random.between(1, nodes)));
  limits.set(1, static_cast<int32_t>(random.one_in(8) ? kMaxHeadWidth : random.between(1, 8)));
  limits.set(2, static_cast<int32_t>(random.one_in(3) ? 1 : random.between(1, random.one_in(8) ? kMaxHeadDepth : 3)));
  call.features.emplace_back(limits.get<int32_t>(2) > 1 ? "several steps" : "one step");
  set(kLimits, limits);
  for (int64_t i = 0; i < blocks; ++i) {
    const size_t at = kFirstBlock + 3 * static_cast<size_t>(i);
    set(at, floats(random, {hidden}, -2.0f, 2.0f));
    set(at + 1, packed_matrix(random, {formats[2], 2 * intermediate, hidden}));
    set(at + 2, packed_matrix(random, {formats[3], hidden, intermediate}));
  }
  call.outputs = {{nodes}, {nodes}, {nodes}, {nodes}, {1}};
  call.output_types = {abi::kInt32, abi::kInt32, abi::kInt32, abi::kFloat, abi::kInt32};
  call.finite_input = kHidden;
  call.verify = [made = call](const Outputs& outputs) { return verify(made, outputs); };
  return call;
}

bool wrong_limit(Case& call, Random& random) {
  const int64_t nodes = call.attribute("nodes")->integer, which = random.below(3);
  const int64_t most[] = {nodes, kMaxHeadWidth, kMaxHeadDepth};
  call.inputs[kLimits].set(which,
                           static_cast<int32_t>(random.pick<int64_t>({0, -1, most[which] + 1, INT32_MIN, INT32_MAX})));
  call.words = {"limits["};
  return true;
}

bool wrong_token(Case& call, Random& random) {
  const int64_t rows = call.attribute("vocabulary")->integer;
  call.inputs[kToken].set(0, random.pick<int64_t>({rows, -1, rows + 15, INT64_MIN, INT64_MAX, int64_t{1} << 32}));
  call.words = {"token is"};
  return true;
}

bool wrong_id(Case& call, Random& random) {
  Input& ids = call.inputs[random.one_in(2) ? kHeadIds : kMoreIds];
  if (!ids.present || ids.count() == 0) return false;
  const auto rows = static_cast<int32_t>(call.attribute("vocabulary")->integer);
  const int64_t at = random.below(ids.count());
  int32_t id = random.pick<int32_t>({rows, -1, INT32_MIN, INT32_MAX, 0});
  if (id == 0) {  // one that does not ascend
    if (at == 0) return false;
    id = ids.get<int32_t>(at - 1) - static_cast<int32_t>(random.below(2));
  }
  ids.set(at, id);
  call.words = {"ids["};
  return true;
}

bool common_id(Case& call, Random& random) {
  const Input &head = call.inputs[kHeadIds], &more = call.inputs[kMoreIds];
  if (!more.present || more.count() == 0) return false;
  std::set<int32_t> ids = ids_of(call, kMoreIds);
  ids.erase(std::next(ids.begin(), random.below(more.count())));
  ids.insert(head.get<int32_t>(random.below(head.count())));
  int64_t at = 0;
  for (const int32_t id : ids) call.inputs[kMoreIds].set(at++, id);
  call.words = {"which is in head_ids, too"};
  return true;
}

bool wrong_state(Case& call, Random& random) {
  Input& state = call.inputs[kHidden];
  state.set(random.below(state.count()), random.pick({std::nanf(""), HUGE_VALF, -HUGE_VALF}));
  call.words = {"is not finite"};
  return true;
}

bool wrong_number(Case& call, Random& random) {
  const auto name = random.pick<std::string>({"hidden", "intermediate", "nodes", "blocks", "vocabulary"});
  call.set(name, random.pick<int64_t>({0, -1, INT64_MIN, INT64_MAX, int64_t{1} << 40, (int64_t{1} << 24) + 1}));
  call.words = {name + " is", "features "};
  return true;
}

bool wrong_blocks(Case& call, Random& random) {
  const int64_t blocks = call.attribute("blocks")->integer;
  if (blocks < 1) call.set("blocks", int64_t{1});  // it was left out
  const size_t used = static_cast<size_t>(std::max<int64_t>(blocks, 1));
  const size_t at = kFirstBlock + 3 * used + static_cast<size_t>(random.below(3));
  if (used < kMaxHeadBlocks && random.one_in(2)) {
    call.inputs[at] = call.inputs[at - 3];
  } else if (used > 1) {
    call.inputs[at - 3].present = false;
  } else {
    return false;
  }
  call.words = {"but blocks is"};
  return true;
}

bool half_of_more(Case& call, Random& random) {
  if (!call.inputs[kMoreHead].present) return false;
  call.inputs[random.one_in(2) ? kMoreHead : kMoreIds].present = false;
  call.words = {"go together"};
  return true;
}

bool wrong_format(Case& call, Random& random) {
  const auto name =
      random.pick<std::string>({"embedding_format", "fc_format", "gate_up_format", "down_format", "head_format"});
  call.set(name, random.pick<std::string>({"", "w9", "W4", "w8,", "w4,w4,w4", std::string(700, 'x')}));
  call.words = {"format is", "format has"};
  return true;
}

}  // namespace

Subject draft_head() {
  Subject subject{"DraftHead",
                  make,
                  {kHidden, kToken, kEmbedding, kFc, kStateNorm, kTokenNorm, kOutputNorm, kHead, kHeadIds, kLimits,
                   kFirstBlock, kFirstBlock + 1, kFirstBlock + 2},
                  {{kHidden, {0, 1}},
                   {kToken, {0}},
                   {kEmbedding, {0, 1, 2}},
                   {kFc, {0, 1, 2}},
                   {kStateNorm, {0}},
                   {kTokenNorm, {0}},
                   {kOutputNorm, {0}},
                   {kHead, {0, 1, 2}},
                   {kMoreHead, {1, 2}},
                   {kLimits, {0}},
                   {kFirstBlock, {0}},
                   {kFirstBlock + 1, {0, 1, 2}},
                   {kFirstBlock + 2, {0, 1, 2}}},
                  {"hidden", "intermediate", "vocabulary", "nodes", "embedding_format", "fc_format", "gate_up_format",
                   "down_format", "head_format"},
                  {kEmbedding, kFc, kHead, kFirstBlock + 1, kFirstBlock + 2},
                  {},
                  {"more rows", "no more rows", "one step", "several steps"}};
  subject.own_mistakes = {
      {"limits", wrong_limit},         {"token out of range", wrong_token}, {"id out of range or order", wrong_id},
      {"id in both heads", common_id}, {"state not finite", wrong_state},   {"sizes", wrong_number},
      {"blocks", wrong_blocks},        {"half of more", half_of_more},      {"format", wrong_format}};
  return subject;
}

}  // namespace edge_rt::fuzz
