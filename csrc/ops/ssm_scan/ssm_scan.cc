#include <cmath>

#include "kernels/kernel_table.h"
#include "ops/recurrent/recurrent_run.h"
#include "ops/ssm_scan/ssm_scan_op.h"

namespace edge_rt {
namespace {

enum OwnInput : int { kZ = kOwnInputs, kT, kAScale, kSkip, kDtBias, kNorm };

constexpr int64_t kKeyStep = 4;  // running sums of a column

long long printable(int64_t value) { return static_cast<long long>(value); }

}  // namespace

abi::Status* SsmScan::create(ort::Attributes& attributes) {
  head_dim_ = attributes.integer("head_dim");
  groups_ = attributes.integer("groups");
  const int64_t norm_first = attributes.integer("norm_first", 0);
  epsilon_ = attributes.real("epsilon", 1e-6f);
  kernels_ = &kernel_table(attributes.isa()).ssm_scan;
  if (head_dim_ < 1 || head_dim_ > kMaxValueDim || head_dim_ % kStripe != 0) {
    return attributes.error("head_dim is %lld, must be a multiple of %d up to %lld", printable(head_dim_), kStripe,
                            printable(kMaxValueDim));
  }
  if (groups_ < 1 || groups_ > kMaxStateHeads) {
    return attributes.error("groups is %lld, must be 1 to %lld", printable(groups_), printable(kMaxStateHeads));
  }
  if (norm_first != 0 && norm_first != 1) {
    return attributes.error("norm_first is %lld, must be 0 or 1", printable(norm_first));
  }
  if (!(epsilon_ >= 0.0f && std::isfinite(epsilon_))) {
    return attributes.error("epsilon must be 0 or more, and finite");
  }
  norm_first_ = norm_first == 1;
  return nullptr;
}

abi::Status* SsmScan::check_shapes(const ort::OpContext& context, SsmPass* all) const {
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(kRowsIn, {-1, -1})) != nullptr ||
      (bad = context.check_shape(kAScale, {-1})) != nullptr) {
    return bad;
  }
  const int64_t rows = context.input(kRowsIn).dims[0], width = context.input(kRowsIn).dims[1];
  const int64_t heads = context.input(kAScale).dims[0], values = heads * head_dim_;
  if (heads < 1 || heads > kMaxStateHeads || heads % groups_ != 0) {
    return context.error("a_scale is [%lld], must be a multiple of the %lld groups up to %lld", printable(heads),
                         printable(groups_), printable(kMaxStateHeads));
  }
  const int64_t rest = width - values, state_size = rest / (2 * groups_);
  if (rest < 1 || rest % (2 * groups_) != 0 || state_size % kKeyStep != 0 || state_size > kMaxKeyDim) {
    return context.error(
        "xbc has %lld columns, of which %lld are x; the others must be 2 x %lld groups of a multiple of %lld up to "
        "%lld",
        printable(width), printable(values), printable(groups_), printable(kKeyStep), printable(kMaxKeyDim));
  }
  all->shape = {groups_, heads, state_size, head_dim_, false};
  all->state_floats = all->shape.state_floats();
  all->transition_floats = all->shape.transition_floats();
  all->rows = rows;
  if ((bad = context.check_shape(kZ, {rows, -1})) != nullptr ||
      (bad = context.check_shape(kT, {rows, -1})) != nullptr ||
      (bad = context.check_shape(kSkip, {heads})) != nullptr ||
      (bad = context.check_shape(kDtBias, {heads})) != nullptr ||
      (bad = context.check_shape(kNorm, {values})) != nullptr) {
    return bad;
  }
  all->z_stride = context.input(kZ).dims[1];
  all->t_stride = context.input(kT).dims[1];
  if (all->z_stride < values || all->t_stride < heads) {
    return context.error("z has %lld columns and t %lld, must have at least %lld and %lld", printable(all->z_stride),
                         printable(all->t_stride), printable(values), printable(heads));
  }
  const bool has_norm = context.input(kNorm).present;
  if (norm_first_ && !has_norm) return context.error("norm_first is 1, and there is no norm");
  all->order = norm_first_ ? GateOrder::kNormGate : has_norm ? GateOrder::kGateNorm : GateOrder::kGate;
  return nullptr;
}

abi::Status* SsmScan::check(ort::OpContext& context, StateRun* run, std::vector<SsmPass>* passes) const {
  SsmPass all{};
  abi::Status* bad = nullptr;
  if ((bad = check_shapes(context, &all)) != nullptr || (bad = check_states(context, all, run)) != nullptr) return bad;
  const int64_t values = all.shape.values();
  ort::TensorView y;
  if ((bad = context.output(0, {all.rows, values}, &y)) != nullptr) return bad;
  const auto floats = [&](int input) { return context.input(input).as<const float>(); };
  all.epsilon = epsilon_;
  all.a_scale = floats(kAScale);
  all.skip = floats(kSkip);
  all.dt_bias = floats(kDtBias);
  all.norm = floats(kNorm);
  for (const StatePass& of_sequence : run->passes) {
    const int64_t begin = of_sequence.steps - run->steps.data();
    SsmPass& pass = passes->emplace_back(all);
    static_cast<StatePass&>(pass) = of_sequence;
    pass.xbc = floats(kRowsIn) + begin * all.width();
    pass.z = floats(kZ) + begin * all.z_stride;
    pass.t = floats(kT) + (begin + 1) * all.t_stride - all.shape.value_heads;
    pass.y = y.as<float>() + begin * values;
  }
  return nullptr;
}

abi::Status* SsmScan::compute(ort::OpContext& context) const {
  StateRun run;
  std::vector<SsmPass> passes;
  if (abi::Status* bad = check(context, &run, &passes)) return bad;
  return run_matrices(context, *kernels_, passes, passes.front().row_floats(), run.levels);
}

}  // namespace edge_rt
