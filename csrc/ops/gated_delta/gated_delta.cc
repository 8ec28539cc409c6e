#include <cmath>

#include "kernels/kernel_table.h"
#include "ops/gated_delta/gated_delta_op.h"
#include "ops/recurrent/recurrent_run.h"

namespace edge_rt {
namespace {

enum OwnInput : int { kZ = kOwnInputs, kB, kA, kAScale, kDtBias, kNorm };

long long printable(int64_t value) { return static_cast<long long>(value); }

}  // namespace

abi::Status* GatedDelta::create(ort::Attributes& attributes) {
  key_heads_ = attributes.integer("key_heads");
  const int64_t is_tiled = attributes.integer("is_tiled", 0);
  epsilon_ = attributes.real("epsilon", 1e-6f);
  key_epsilon_ = attributes.real("key_epsilon", 1e-6f);
  kernels_ = &kernel_table(attributes.isa()).gated_delta;
  if (key_heads_ < 1 || key_heads_ > kMaxStateHeads) {
    return attributes.error("key_heads is %lld, must be 1 to %lld", printable(key_heads_), printable(kMaxStateHeads));
  }
  if (is_tiled != 0 && is_tiled != 1) {
    return attributes.error("is_tiled is %lld, must be 0 or 1", printable(is_tiled));
  }
  for (const float epsilon : {epsilon_, key_epsilon_}) {
    if (!(epsilon >= 0.0f && std::isfinite(epsilon))) {
      return attributes.error("epsilon and key_epsilon must be 0 or more, and finite");
    }
  }
  is_tiled_ = is_tiled == 1;
  return nullptr;
}

abi::Status* GatedDelta::check_shapes(const ort::OpContext& context, MatrixPass* all) const {
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(kRowsIn, {-1, -1})) != nullptr ||
      (bad = context.check_shape(kAScale, {-1})) != nullptr || (bad = context.check_shape(kNorm, {-1})) != nullptr) {
    return bad;
  }
  const int64_t rows = context.input(kRowsIn).dims[0], width = context.input(kRowsIn).dims[1];
  const int64_t heads = context.input(kAScale).dims[0], value_dim = context.input(kNorm).dims[0];
  if (heads < 1 || heads > kMaxStateHeads || heads % key_heads_ != 0) {
    return context.error("a_scale is [%lld], must be a multiple of the %lld K heads up to %lld", printable(heads),
                         printable(key_heads_), printable(kMaxStateHeads));
  }
  if (value_dim < 1 || value_dim > kMaxValueDim || value_dim % kStripe != 0) {
    return context.error("norm is [%lld], must be a multiple of %d up to %lld", printable(value_dim), kStripe,
                         printable(kMaxValueDim));
  }
  const int64_t rest = width - heads * value_dim, key_dim = rest / (2 * key_heads_);
  if (rest < 1 || rest % (2 * key_heads_) != 0 || key_dim % kStripe != 0 || key_dim > kMaxKeyDim) {
    return context.error(
        "qkv has %lld columns, of which %lld are v; the others must be 2 x %lld heads of a multiple of "
        "%d up to %lld",
        printable(width), printable(heads * value_dim), printable(key_heads_), kStripe, printable(kMaxKeyDim));
  }
  all->shape = {key_heads_, heads, key_dim, value_dim, is_tiled_};
  all->state_floats = all->shape.state_floats();
  all->transition_floats = all->shape.transition_floats();
  all->rows = rows;
  if ((bad = context.check_shape(kZ, {rows, heads * value_dim})) != nullptr ||
      (bad = context.check_shape(kB, {rows, heads})) != nullptr ||
      (bad = context.check_shape(kA, {rows, heads})) != nullptr ||
      (bad = context.check_shape(kDtBias, {heads})) != nullptr) {
    return bad;
  }
  return nullptr;
}

abi::Status* GatedDelta::check(ort::OpContext& context, StateRun* run, std::vector<DeltaPass>* passes) const {
  DeltaPass all{};
  abi::Status* bad = nullptr;
  if ((bad = check_shapes(context, &all)) != nullptr || (bad = check_states(context, all, run)) != nullptr) return bad;
  const int64_t keys = all.shape.keys(), values = all.shape.values(), heads = all.shape.value_heads;
  ort::TensorView y;
  if ((bad = context.output(0, {all.rows, values}, &y)) != nullptr) return bad;
  const auto floats = [&](int input) { return context.input(input).as<const float>(); };
  all.epsilon = epsilon_;
  all.key_epsilon = key_epsilon_;
  all.a_scale = floats(kAScale);
  all.dt_bias = floats(kDtBias);
  all.norm = floats(kNorm);
  for (const StatePass& of_sequence : run->passes) {
    const int64_t begin = of_sequence.steps - run->steps.data();
    DeltaPass& pass = passes->emplace_back(all);
    static_cast<StatePass&>(pass) = of_sequence;
    pass.qkv = floats(kRowsIn) + begin * (2 * keys + values);
    pass.z = floats(kZ) + begin * values;
    pass.b = floats(kB) + begin * heads;
    pass.a = floats(kA) + begin * heads;
    pass.y = y.as<float>() + begin * values;
  }
  return nullptr;
}

abi::Status* GatedDelta::compute(ort::OpContext& context) const {
  StateRun run;
  std::vector<DeltaPass> passes;
  if (abi::Status* bad = check(context, &run, &passes)) return bad;
  return run_matrices(context, *kernels_, passes, passes.front().row_floats(), run.levels);
}

}  // namespace edge_rt
