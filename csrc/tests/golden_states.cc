// Ops with states: StateConv, GatedDelta and SsmScan.
#include "tests/golden_ops.h"

namespace edge_rt::golden {
namespace {

constexpr int64_t kDrafts = 12;

// A prompt in passes of several sizes, a tree of drafts that nobody wants, another one of which a path is accepted, and
// what follows it; the outputs of all, and both slots at the end. `all` has a shape and weights; `draw` makes up inputs
// of its rows, kept as long as what it returns.
template <class Pass, class Draw>
void run_texts(const MatrixKernels<Pass>& kernels, const Report& report, const std::string& name, const Pass& all,
               const Draw& draw) {
  const MatrixShape& shape = all.shape;
  std::vector<float> slots[2];
  for (auto& slot : slots) slot.resize(static_cast<size_t>(shape.state_floats() + kDrafts * shape.transition_floats()));
  Hash hash;
  bool begins = true;
  int read = 0;
  const auto run = [&](int64_t certain, const std::vector<StateStep>& drafts, const std::vector<int32_t>& advance) {
    Pass pass = all;
    pass.state_floats = shape.state_floats();
    pass.transition_floats = shape.transition_floats();
    pass.rows = certain + static_cast<int64_t>(drafts.size());
    pass.certain = certain;
    std::vector<StateStep> steps;
    for (int64_t i = 0; i < certain; ++i) steps.push_back({-1, -1, i + 1 < pass.rows});
    steps.insert(steps.end(), drafts.begin(), drafts.end());
    const std::vector<std::vector<float>> inputs = draw(pass);
    std::vector<float> prepared(static_cast<size_t>(pass.rows * pass.row_floats())),
        y(static_cast<size_t>(pass.rows * shape.values())), scratch(static_cast<size_t>(3 * shape.stripe_floats()));
    pass.read = begins ? nullptr : slots[read].data();
    pass.written = slots[1 - read].data();
    pass.advance = advance.data();
    pass.advance_count = static_cast<int64_t>(advance.size());
    pass.steps = steps.data();
    pass.prepared = prepared.data();
    pass.y = y.data();
    for (int64_t i = pass.rows - 1; i >= 0; --i) kernels.prepare(pass, i);
    for (int64_t i = shape.value_heads * shape.stripes() - 1; i >= 0; --i) {
      kernels.stripe(pass, i / shape.stripes(), i % shape.stripes(), scratch.data());
    }
    for (int64_t i = 0; i < pass.rows; ++i) kernels.finish(pass, i);
    hash.add(y);
  };
  for (const int64_t rows : {1, 2, 20}) {
    run(rows, {}, {});
    begins = false;
    read = 1 - read;
  }
  // Parents of drafts: the last certain row, 0, 1, 1, 3, 3, 0, 6; and a chain of nine.
  run(1,
      {{-1, 0, true},
       {0, 1, true},
       {1, 2, false},
       {1, 1, true},
       {1, 2, false},
       {1, 1, false},
       {0, 0, true},
       {0, 0, false}},
      {});
  std::vector<StateStep> nine(9, {0, 0, true});
  nine.front().from = -1, nine.back().is_followed = false;
  run(2, nine, {});
  read = 1 - read;
  run(0, nine, {0, 1, 2, 3, 4, 6});
  read = 1 - read;
  run(3, {}, {1});
  for (const auto& slot : slots) hash.add(slot);
  report(name, hash.value());
}

// A prompt in passes of several sizes, a tree of drafts, one of whose paths is accepted, and what follows it; the
// outputs of all, and both slots at the end. Rows come from wider ones.
void run_state_conv(const KernelTable& kernels, const Report& report, int64_t channels, int64_t taps, bool has_bias) {
  const std::string name = "state_conv." + std::to_string(channels) + "x" + std::to_string(taps);
  Random random(name);
  const std::vector<float> weight = random.uniform(taps * channels, 2.0f), bias = random.uniform(channels, 1.0f);
  StateConvPass pass{};
  pass.state_floats = (taps - 1) * channels;
  pass.transition_floats = channels;
  pass.taps = taps;
  pass.channels = channels;
  pass.stride = channels + 5;
  pass.weight = weight.data();
  pass.bias = has_bias ? bias.data() : nullptr;
  std::vector<float> slots[2];
  for (auto& slot : slots) slot.resize(static_cast<size_t>(pass.state_floats + kDrafts * pass.transition_floats));
  Hash hash;
  int read = 0;
  const auto run = [&](int64_t certain, const std::vector<int32_t>& parents, const std::vector<int32_t>& advance) {
    pass.rows = static_cast<int64_t>(parents.size());
    pass.certain = certain;
    pass.parents = parents.data();
    pass.advance = advance.data();
    pass.advance_count = static_cast<int64_t>(advance.size());
    pass.read = pass.past > 0 ? slots[read].data() : nullptr;
    pass.written = slots[1 - read].data();
    const std::vector<float> x = random.uniform(pass.rows * pass.stride, 2.0f);
    std::vector<float> y(static_cast<size_t>(pass.rows * channels));
    pass.x = x.data();
    pass.y = y.data();
    kernels.state_conv.rows(pass, pass.rows / 2, pass.rows);
    kernels.state_conv.rows(pass, 0, pass.rows / 2);
    hash.add(y);
    read = 1 - read;
  };
  for (const int64_t rows : {1, 2, 20}) {
    run(rows, chain(rows), {});
    pass.past += rows;
  }
  run(1, {-1, 0, 1, 2, 2, 1, 5, 0, 7}, {});
  pass.past += 4;
  run(0, {-1, 0, 1, -1}, {0, 4, 5});
  pass.past += 2;
  run(3, chain(3), {0, 1});
  for (const auto& slot : slots) hash.add(slot);
  report(name, hash.value());
}

std::vector<float> decay_rates(Random& random, int64_t heads) {
  std::vector<float> rates = random.uniform(heads, 1.0f);
  for (float& rate : rates) rate -= 1.0f;
  return rates;
}

void run_gated_delta(const KernelTable& kernels, const Report& report, const MatrixShape& shape, float epsilon,
                     float key_epsilon) {
  const std::string name = "gated_delta." + std::to_string(shape.key_heads) + "x" + std::to_string(shape.key_dim) +
                           "_" + std::to_string(shape.value_heads) + "x" + std::to_string(shape.value_dim) +
                           (shape.is_tiled ? ".tiled" : "");
  Random random(name);
  const std::vector<float> rates = decay_rates(random, shape.value_heads),
                           dt_bias = random.uniform(shape.value_heads, 2.0f),
                           norm = random.uniform(shape.value_dim, 2.0f);
  DeltaPass all{};
  all.shape = shape;
  all.epsilon = epsilon;
  all.key_epsilon = key_epsilon;
  all.a_scale = rates.data();
  all.dt_bias = dt_bias.data();
  all.norm = norm.data();
  run_texts(kernels.gated_delta, report, name, all, [&](DeltaPass& pass) {
    std::vector<std::vector<float>> inputs;
    inputs.push_back(random.uniform(pass.rows * (2 * shape.keys() + shape.values()), 2.0f));
    inputs.push_back(random.uniform(pass.rows * shape.values(), 4.0f));
    inputs.push_back(random.uniform(pass.rows * shape.value_heads, 4.0f));
    inputs.push_back(random.uniform(pass.rows * shape.value_heads, 30.0f));
    pass.qkv = inputs[0].data();
    pass.z = inputs[1].data();
    pass.b = inputs[2].data();
    pass.a = inputs[3].data();
    return inputs;
  });
}

// Gates and steps come from rows that hold both, behind one another.
void run_ssm_scan(const KernelTable& kernels, const Report& report, const MatrixShape& shape, GateOrder order) {
  static constexpr const char* kOrders[] = {"gate_norm", "norm_gate", "gate"};
  const std::string name = "ssm_scan." + std::to_string(shape.value_heads) + "x" + std::to_string(shape.value_dim) +
                           "_" + std::to_string(shape.key_heads) + "x" + std::to_string(shape.key_dim) + "." +
                           kOrders[static_cast<int>(order)];
  Random random(name);
  const std::vector<float> rates = decay_rates(random, shape.value_heads),
                           dt_bias = random.uniform(shape.value_heads, 2.0f),
                           skip = random.uniform(shape.value_heads, 2.0f), norm = random.uniform(shape.values(), 2.0f);
  SsmPass all{};
  all.shape = shape;
  all.order = order;
  all.epsilon = 2e-3f;
  all.a_scale = rates.data();
  all.skip = skip.data();
  all.dt_bias = dt_bias.data();
  all.norm = order == GateOrder::kGate ? nullptr : norm.data();
  all.z_stride = all.t_stride = shape.values() + shape.value_heads;
  run_texts(kernels.ssm_scan, report, name, all, [&](SsmPass& pass) {
    std::vector<std::vector<float>> inputs;
    inputs.push_back(random.uniform(pass.rows * pass.width(), 2.0f));
    inputs.push_back(random.uniform(pass.rows * pass.z_stride, 8.0f));
    pass.xbc = inputs[0].data();
    pass.z = inputs[1].data();
    pass.t = pass.z + shape.values();
    return inputs;
  });
}

}  // namespace

void run_drawn_states(const KernelTable& kernels, uint64_t seed, const Report& report) {
  Random random("drawn_states." + std::to_string(seed));
  const auto shape = [&](int key_unit) {
    MatrixShape drawn{};
    drawn.key_heads = 1 + random.below(4);
    drawn.value_heads = drawn.key_heads * (1 + random.below(5));
    drawn.key_dim = key_unit * (1 + random.below(176 / key_unit));
    drawn.value_dim = kTileRows * (1 + random.below(8));
    return drawn;
  };
  run_state_conv(kernels, report, 1 + random.below(200), 1 + random.below(kMaxStateTaps), random.below(2) != 0);
  MatrixShape delta = shape(kTileRows);
  delta.is_tiled = random.below(2) != 0;
  run_gated_delta(kernels, report, delta, 1e-6f * static_cast<float>(1 + random.below(1000)), 1e-6f);
  run_ssm_scan(kernels, report, shape(4), static_cast<GateOrder>(random.below(3)));
}

void run_states(const KernelTable& kernels, const Report& report) {
  run_state_conv(kernels, report, 64, 4, true);
  run_state_conv(kernels, report, 37, 3, false);
  run_state_conv(kernels, report, 5, kMaxStateTaps, true);
  run_state_conv(kernels, report, 16, 1, false);
  run_gated_delta(kernels, report, {2, 6, 32, 48, false}, 2e-3f, 1e-6f);
  run_gated_delta(kernels, report, {2, 6, 32, 48, true}, 2e-3f, 1e-5f);
  run_gated_delta(kernels, report, {16, 16, 128, 128, false}, 1e-6f, 1e-6f);
  run_gated_delta(kernels, report, {1, 17, 16, 16, false}, 1e-6f, 1e-6f);
  run_gated_delta(kernels, report, {1, 1, 272, 16, false}, 1e-6f, 1e-6f);
  run_ssm_scan(kernels, report, {3, 12, 32, 16, false}, GateOrder::kGateNorm);
  run_ssm_scan(kernels, report, {2, 34, 4, 48, false}, GateOrder::kNormGate);
  run_ssm_scan(kernels, report, {1, 8, 128, 80, false}, GateOrder::kGate);
  run_ssm_scan(kernels, report, {1, 17, 20, 64, false}, GateOrder::kGateNorm);
  run_ssm_scan(kernels, report, {1, 1, 132, 16, false}, GateOrder::kGateNorm);
}

}  // namespace edge_rt::golden
