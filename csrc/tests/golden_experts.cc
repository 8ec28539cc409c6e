// Experts, as a whole operator: what they choose and add up.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/golden_node.h"
#include "tests/golden_ops.h"

namespace edge_rt::golden {
namespace {

struct Shape {
  const char* name;
  int64_t hidden, inner, experts, chosen;
  WeightFormat gate_up, down;
  const char* gating;
  const char* activation;
  bool is_normalised, has_norm, has_biases, has_choice_bias;
  float scale = 1.0f, residual_scale = 1.0f;
  float limit = 0.0f, slope = 1.0f, up_offset = 0.0f;
  int64_t groups = 1, chosen_groups = 1;
  int64_t width = 0;       // of rows of their own
  bool has_parts = false;  // what stands beside experts and behind them
  bool has_norms = false;  // of their own, and of the sum
  int64_t nan_every = 0;   // of experts whose router holds a number that is none; 0: none does
};

constexpr Shape kShapes[] = {
    {"softmax", 64, 32, 13, 3, WeightFormat::kW8, WeightFormat::kW4M, "softmax", "swiglu", true, true, false, false},
    {"chosen", 96, 32, 5, 2, WeightFormat::kMX4, WeightFormat::kMX4, "chosen", "geglu", false, false, true, false, 1.0f,
     0.25f},
    {"sigmoid", 80, 48, 17, 4, WeightFormat::kF16, WeightFormat::kBF16, "sigmoid", "swiglu", true, true, false, true,
     2.5f},
    {"relu2", 256, 256, 3, 1, WeightFormat::kW4K, WeightFormat::kW6K, "softmax", "relu2", false, true, true, true},
    {"limits", 96, 32, 6, 2, WeightFormat::kMX4, WeightFormat::kMX4, "chosen", "swiglu", false, true, true, false, 1.0f,
     1.0f, 1.5f, 1.702f, 1.0f},
    {"groups",
     64,
     32,
     12,
     3,
     WeightFormat::kW8,
     WeightFormat::kW8,
     "sigmoid",
     "relu2",
     true,
     true,
     false,
     true,
     2.5f,
     1.0f,
     0.0f,
     1.0f,
     0.0f,
     4,
     2,
     32},
    {"beside",
     64,
     32,
     5,
     2,
     WeightFormat::kW4,
     WeightFormat::kW8,
     "softmax",
     "swiglu",
     true,
     true,
     false,
     false,
     1.0f,
     0.5f,
     0.0f,
     1.0f,
     0.0f,
     1,
     1,
     0,
     true},
    {"own_norms",
     96,
     32,
     7,
     3,
     WeightFormat::kW8,
     WeightFormat::kW4,
     "softmax",
     "geglu",
     true,
     true,
     false,
     false,
     1.0f,
     0.75f,
     0.0f,
     1.0f,
     0.0f,
     1,
     1,
     0,
     true,
     true},
    {"many",
     64,
     32,
     300,
     30,
     WeightFormat::kW8,
     WeightFormat::kW4,
     "sigmoid",
     "relu2",
     true,
     false,
     false,
     true,
     2.5f,
     1.0f,
     0.0f,
     1.0f,
     0.0f,
     150,
     40}};

std::vector<float> run_shape(const NodeRunner& run, const Shape& shape, int64_t rows, int threads) {
  Random random(shape.name);
  const int64_t halves = std::string(shape.activation) == "relu2" ? 1 : 2;
  const int64_t width = shape.width != 0 ? shape.width : shape.hidden;
  const int64_t between = halves * shape.experts * shape.inner, outputs = shape.experts * width;
  const Matrix gate_up(random, shape.gate_up, between, width), down(random, shape.down, outputs, shape.inner);
  std::vector<float> router = random.uniform(shape.experts * shape.hidden, 0.4f);
  for (int64_t i = 0; shape.nan_every != 0 && i < shape.experts; i += shape.nan_every) {
    router[static_cast<size_t>(i * shape.hidden + i % shape.hidden)] = std::nanf("");
  }
  const std::vector<float> norm = random.uniform(shape.hidden, 2.0f), bias = random.uniform(shape.experts, 1.0f);
  const std::vector<float> choice = random.uniform(shape.experts, 1.0f), up_bias = random.uniform(between, 1.0f);
  const std::vector<float> down_bias = random.uniform(outputs, 1.0f);
  const std::vector<float> x = random.uniform(rows * shape.hidden, 3.0f);
  const std::vector<float> residual = random.uniform(rows * width, 2.0f);
  const std::vector<float> expert_x = random.uniform(shape.width * rows, 3.0f);
  const int64_t more = shape.has_parts ? 1 : 0;
  const std::vector<float> shared = random.uniform(more * rows * width, 2.0f);
  const bool has_gate = shape.has_parts && !shape.has_norms;
  const std::vector<float> shared_gate = random.uniform(has_gate ? shape.hidden : 0, 0.4f);
  const std::vector<float> expert_scale = random.uniform(more * shape.experts, 2.0f);
  const std::vector<float> post_norm = random.uniform(more * width, 2.0f);
  const std::vector<float> expert_norm = random.uniform(shape.has_norms ? shape.hidden : 0, 2.0f);
  const std::vector<float> sum_norm = random.uniform(shape.has_norms ? width : 0, 2.0f);
  const auto matrix = [](const Matrix& of) {
    const PackedWeight packed = of.packed();
    const int64_t units = packed.blocks / facts(packed.format).unit_blocks;
    return tensor_of({packed.tiles, units, stored_unit_bytes(packed.format)}, packed.data);
  };
  const auto row = [](bool is_there, const std::vector<float>& values) {
    return is_there ? tensor_of({static_cast<int64_t>(values.size())}, values.data()) : Tensor{};
  };
  const std::vector<Tensor> inputs = {tensor_of({rows, shape.hidden}, x.data()),
                                      tensor_of({shape.experts, shape.hidden}, router.data()),
                                      matrix(gate_up),
                                      matrix(down),
                                      row(shape.has_norm, norm),
                                      {},
                                      row(shape.has_biases, bias),
                                      row(shape.has_choice_bias, choice),
                                      row(shape.has_biases, up_bias),
                                      row(shape.has_biases, down_bias),
                                      tensor_of({rows, width}, residual.data()),
                                      shape.width != 0 ? tensor_of({rows, width}, expert_x.data()) : Tensor{},
                                      shape.has_parts ? tensor_of({rows, width}, shared.data()) : Tensor{},
                                      row(has_gate, shared_gate),
                                      row(shape.has_parts, expert_scale),
                                      row(shape.has_parts, post_norm),
                                      row(shape.has_norms, expert_norm),
                                      row(shape.has_norms, sum_norm)};
  const auto integer = [](const char* name, int64_t value) {
    return fake::Attribute{name, fake::Attribute::kInteger, value, 0.0f, ""};
  };
  const auto real = [](const char* name, float value) {
    return fake::Attribute{name, fake::Attribute::kReal, 0, value, ""};
  };
  const auto text = [](const char* name, const std::string& value) {
    return fake::Attribute{name, fake::Attribute::kText, 0, 0.0f, value};
  };
  const std::vector<fake::Attribute> attributes = {integer("hidden", shape.hidden),
                                                   integer("intermediate", shape.inner),
                                                   integer("experts", shape.experts),
                                                   integer("chosen", shape.chosen),
                                                   integer("normalise", shape.is_normalised ? 1 : 0),
                                                   text("gating", shape.gating),
                                                   text("activation", shape.activation),
                                                   text("gate_up_format", format_name(shape.gate_up)),
                                                   text("down_format", format_name(shape.down)),
                                                   real("epsilon", 1e-5f),
                                                   real("weight_epsilon", 1e-6f),
                                                   real("weight_scale", shape.scale),
                                                   real("residual_scale", shape.residual_scale),
                                                   real("limit", shape.limit),
                                                   real("slope", shape.slope),
                                                   real("up_offset", shape.up_offset),
                                                   integer("groups", shape.groups),
                                                   integer("chosen_groups", shape.chosen_groups),
                                                   integer("width", shape.width)};
  const auto bytes = run(attributes, inputs, std::vector<int>{abi::kFloat}, threads);
  std::vector<float> y(bytes[0].size() / sizeof(float));
  std::memcpy(y.data(), bytes[0].data(), bytes[0].size());
  return y;
}

Shape drawn_shape(uint64_t seed, const char* name) {
  Random random("drawn_experts." + std::to_string(seed));
  const auto format = [&] { return static_cast<WeightFormat>(random.below(kWeightFormatCount)); };
  const auto pick = [&](const std::vector<const char*>& names) {
    return names[static_cast<size_t>(random.below(static_cast<int>(names.size())))];
  };
  Shape shape{};
  shape.name = name;
  shape.gate_up = format();
  do shape.down = format();
  while (unit_inputs(shape.down) > unit_inputs(shape.gate_up));  // small shapes are drawn often, too
  const auto size = [&](WeightFormat of) {
    const int64_t unit = std::max<int64_t>(kTileRows, unit_inputs(of));
    return unit * (1 + random.below(static_cast<int>(std::max<int64_t>(1, 160 / unit))));
  };
  shape.hidden = size(shape.gate_up);
  shape.inner = size(shape.down);
  shape.groups = 1 + random.below(4);
  const int64_t in_group = 1 + random.below(12);
  shape.experts = shape.groups * in_group;
  shape.chosen_groups = 1 + random.below(static_cast<int>(shape.groups));
  shape.chosen = 1 + random.below(static_cast<int>(std::min<int64_t>(8, shape.chosen_groups * in_group)));
  shape.gating = pick({"softmax", "chosen", "sigmoid"});
  shape.activation = pick({"swiglu", "geglu", "relu2"});
  shape.is_normalised = random.below(2) != 0;
  shape.has_norm = random.below(2) != 0;
  shape.has_biases = random.below(2) != 0;
  shape.has_choice_bias = random.below(2) != 0;
  shape.residual_scale = 0.5f;
  if (shape.activation == std::string("swiglu") && random.below(2) != 0) shape.limit = 1.5f, shape.slope = 1.7f;
  shape.has_parts = random.below(3) == 0;
  if (random.below(3) == 0) shape.nan_every = 1 + random.below(6);
  return shape;
}

}  // namespace

void run_drawn_experts(const NodeRunner& run, uint64_t seed, const Report& report) {
  const std::string name = "experts.drawn" + std::to_string(seed);
  const Shape shape = drawn_shape(seed, name.c_str());
  Hash hash;
  for (const int64_t rows : {1, 3, 33}) {
    std::vector<float> y = run_shape(run, shape, rows, 1);
    for (float& value : y) {
      if (value != value) value = std::nanf("");
    }
    hash.add(y);
  }
  report(name + (shape.nan_every != 0 ? ".nan" : ""), hash.value());
}

void run_experts(const Report& report) {
  run_experts([](const auto& attributes, const auto& inputs, const auto& outputs,
                 int threads) { return run_node("Experts", attributes, inputs, outputs, threads); },
              report);
}

void run_experts(const NodeRunner& run, const Report& report) {
  for (const Shape& shape : kShapes) {
    Hash hash;
    for (const int64_t rows : {1, 2, 40}) hash.add(run_shape(run, shape, rows, rows == 2 ? 1 : 3));
    report(std::string("experts.") + shape.name, hash.value());
  }
}

}  // namespace edge_rt::golden
