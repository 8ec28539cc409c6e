// Calls of DecoderLayer: SpecAttention's passes with matrices of all formats around them.
#include <algorithm>
#include <cmath>

#include "tests/fuzz_parts.h"

namespace edge_rt::fuzz {
namespace {

constexpr int64_t kMostProducts = 150000;  // of a call's matrices: it should take a few milliseconds
constexpr int kAttentionNorm = kSinks + 1, kMlpNorm = kSinks + 4;
constexpr int kBiases = kLayerKeyConstants + 3, kPostNorms = kBiases + 4, kNormBiases = kBiases + 7;

enum MatrixIndex : int { kQkv, kOutput, kGateUp, kDown, kMatrices };
constexpr const char* kNames[kMatrices] = {"qkv", "output", "gate_up", "down"};
constexpr int kInputs[kMatrices] = {kSinks + 2, kSinks + 3, kSinks + 5, kSinks + 6};

std::string format_attribute(int matrix) { return std::string(kNames[matrix]) + "_format"; }

// 1 to `most`, a multiple of `step`.
int64_t steps(Random& random, int64_t step, int64_t most) {
  return step * random.between(1, std::max<int64_t>(1, most / step));
}

// What few models have: biases, norms of results, LayerNorm, no norm at all, a scale of what is added.
void add_steps(Case& call, Random& random, int64_t hidden, const int64_t* outs) {
  const auto put = [&](int index, int64_t size, float low, float high) {
    call.inputs[static_cast<size_t>(index)] = floats(random, {size}, low, high);
    call.inputs[static_cast<size_t>(index)].present = random.one_in(3);
  };
  call.inputs.resize(kNormBiases + 3);
  for (int i = 0; i < kMatrices; ++i) put(kBiases + i, outs[i], -1.0f, 1.0f);
  for (int i = 0; i < 2; ++i) put(kPostNorms + i, hidden, -2.0f, 2.0f);
  for (int i = 0; i < 2; ++i) put(kNormBiases + i, hidden, -1.0f, 1.0f);
  for (int i = 0; i < 2; ++i) {
    Input& norm = call.inputs[static_cast<size_t>(i == 0 ? kAttentionNorm : kMlpNorm)];
    norm.present = !random.one_in(5);
    if (!norm.present) call.inputs[static_cast<size_t>(kNormBiases + i)].present = false;
  }
  if (random.one_in(3)) call.set("norm", random.pick<std::string>({"rms", "layer"}));
  if (random.one_in(3)) call.set("residual_scale", random.uniform(-2.0f, 2.0f));
}

Case make(Random& random) {
  Case call;
  call.op = "DecoderLayer";
  const AttentionShape shape = any_attention(random, !random.one_in(3));
  const int64_t attended = shape.heads * shape.dim, width = shape.width();
  WeightFormat formats[kMatrices];
  // Those of more than 32 inputs to a unit are for QuantLinear's cases, and for the golden ones: layers here are small.
  for (WeightFormat& format : formats) {
    do {
      format = static_cast<WeightFormat>(random.below(kWeightFormatCount));
    } while (unit_inputs(format) > kBlock);
  }
  if (attended % kBlock != 0) formats[kOutput] = random.pick({WeightFormat::kF16, WeightFormat::kF32});
  const int64_t row_products = kMostProducts / shape.rows();
  const int64_t most_hidden = std::clamp<int64_t>(row_products / 2 / (width + attended), kBlock, 128);
  const bool any_hidden = !rounds_activations(formats[kQkv]) && !rounds_activations(formats[kGateUp]);
  const int64_t hidden = any_hidden ? random.size(most_hidden) : steps(random, kBlock, most_hidden);
  const int64_t inner_step = rounds_activations(formats[kDown]) ? kBlock : kTileRows;
  const int64_t intermediate = steps(random, inner_step, std::min<int64_t>(row_products / 2 / (3 * hidden), 160));

  call.inputs = {floats(random, {shape.rows(), hidden}, -3.0f, 3.0f)};
  add_attention(call, random, shape, kLayerKeyConstants);
  call.inputs[kAttentionNorm] = floats(random, {hidden}, -2.0f, 2.0f);
  call.inputs[kMlpNorm] = floats(random, {hidden}, -2.0f, 2.0f);
  const bool is_gated = !random.one_in(4);
  if (!is_gated) {
    call.set("activation", std::string("relu2"));
  } else if (random.one_in(2)) {
    call.set("activation", random.pick<std::string>({"swiglu", "geglu"}));
  }
  const int64_t outs[kMatrices] = {width, hidden, (is_gated ? 2 : 1) * intermediate, hidden};
  const int64_t ins[kMatrices] = {hidden, attended, hidden, intermediate};
  for (int i = 0; i < kMatrices; ++i) {
    call.inputs[static_cast<size_t>(kInputs[i])] = packed_matrix(random, {formats[i], outs[i], ins[i]});
    call.set(format_attribute(i), format_name(formats[i]));
    if (random.one_in(4)) call.set(std::string(kNames[i]) + "_fine_blocks", fine_blocks(random, {formats[i]}, ins[i]));
  }
  call.set("hidden", hidden);
  call.set("intermediate", intermediate);
  add_steps(call, random, hidden, outs);
  call.outputs = {{shape.rows(), hidden}};
  call.output_types = {abi::kFloat};
  return call;
}

bool other_format(Case& call, Random& random) {
  const int which = static_cast<int>(random.below(kMatrices));
  const std::string name = format_name(static_cast<WeightFormat>(random.below(kWeightFormatCount)));
  if (are_alike(name, call.attribute(format_attribute(which))->text)) return false;
  call.set(format_attribute(which), name);
  call.words = {std::string(kNames[which]) + " is [", "in_features is ", "fine_blocks"};
  return true;
}

bool unknown_format(Case& call, Random& random) {
  call.set(format_attribute(static_cast<int>(random.below(kMatrices))),
           random.pick<std::string>({"", "w9", "W4", "w4m ", std::string(700, 'x'), "f64"}));
  call.words = {"format is", "_format is"};
  return true;
}

bool wrong_size(Case& call, Random& random) {
  const char* name = random.pick({"hidden", "intermediate"});
  call.set(name,
           random.pick<int64_t>({0, -1, -32, INT64_MIN, INT64_MAX, INT64_MAX - 15, int64_t{1} << 40, (1 << 24) + 32}));
  call.words = {"out_features ", "in_features is ", "intermediate is"};
  return true;
}

// A size that a layer may have, but not this one.
bool other_size(Case& call, Random& random) {
  const bool is_hidden = random.one_in(2);
  const char* name = is_hidden ? "hidden" : "intermediate";
  call.set(name, call.attribute(name)->integer + kBlock * random.between(1, 3));
  call.words = {is_hidden ? "x is [" : "gate_up is ["};
  return true;
}

bool wrong_fine(Case& call, Random& random) {
  call.set(std::string(kNames[random.below(kMatrices)]) + "_fine_blocks", wrong_fine_blocks(random));
  call.words = {"fine_blocks"};
  return true;
}

bool uneven_intermediate(Case& call, Random& random) {
  call.set("intermediate", call.attribute("intermediate")->integer + random.between(1, kTileRows - 1));
  call.words = {"intermediate is", "in_features is "};
  return true;
}

bool shifted_matrix(Case& call, Random& random) {
  const int which = static_cast<int>(random.below(kMatrices));
  const bool is_float = call.attribute(format_attribute(which))->text == "f32";
  call.inputs[static_cast<size_t>(kInputs[which])].alignment = is_float ? random.pick<size_t>({1, 2}) : 1;
  call.words = {std::string(kNames[which]) + " does not begin"};
  return true;
}

bool wrong_steps(Case& call, Random& random) {
  switch (random.below(4)) {
    case 0: call.set("activation", random.pick<std::string>({"", "none", "silu", "GEGLU"})); break;
    case 1: call.set("norm", random.pick<std::string>({"", "RMS", "batch"})); break;
    case 2: call.set("residual_scale", random.pick({std::nanf(""), HUGE_VALF, -HUGE_VALF})); break;
    default: {
      const int which = static_cast<int>(random.below(2));
      call.inputs[static_cast<size_t>(which == 0 ? kAttentionNorm : kMlpNorm)].present = false;
      call.inputs[static_cast<size_t>(kNormBiases + which)].present = true;
    }
  }
  call.words = {"activation is", "norm is", "residual_scale is", "norm_bias is given"};
  return true;
}

bool wrong_epsilon(Case& call, Random& random) {
  call.set("epsilon", random.pick({std::nanf(""), -1.0f, -HUGE_VALF, HUGE_VALF}));
  call.words = {"epsilon is"};
  return true;
}

}  // namespace

Subject decoder_layer() {
  Subject subject = attention_subject("DecoderLayer", make, kLayerKeyConstants);
  for (const int i : {kAttentionNorm, kMlpNorm}) subject.checked.push_back({i, {0}});
  for (int i = kBiases; i < kNormBiases + 2; ++i) subject.checked.push_back({i, {0}});
  for (int i = 0; i < kMatrices; ++i) {
    subject.required.push_back(kInputs[i]);
    subject.checked.push_back({kInputs[i], {0, 1, 2}});
    subject.packed_inputs.push_back(kInputs[i]);
    subject.required_attributes.push_back(format_attribute(i));
  }
  subject.required_attributes.insert(subject.required_attributes.end(), {"hidden", "intermediate"});
  const std::vector<Mistake> own = {{"format of other weights", other_format},
                                    {"format unknown", unknown_format},
                                    {"layer size", wrong_size},
                                    {"layer size of another layer", other_size},
                                    {"intermediate uneven", uneven_intermediate},
                                    {"weight misaligned", shifted_matrix},
                                    {"activation, norm, scale", wrong_steps},
                                    {"fine blocks", wrong_fine},
                                    {"epsilon", wrong_epsilon}};
  subject.own_mistakes.insert(subject.own_mistakes.end(), own.begin(), own.end());
  return subject;
}

}  // namespace edge_rt::fuzz
