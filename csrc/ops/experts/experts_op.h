// Experts' face to ONNX Runtime.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "ops/experts/experts.h"
#include "ops/quant_linear/quant_linear_op.h"
#include "ort/op.h"

namespace edge_rt {

class ReadExperts;

// y [S, hidden] = residual + residual_scale * the weighted sum of a row's experts (experts.h), of x [S, hidden].
//   gate_up holds `experts` matrices of 2 * intermediate rows, whose tiles alternate gate and up rows, and so do the
//   numbers of its bias; of intermediate rows where activation is "relu2". Its format may be two, of gate and up. down
//   holds as many of `hidden` rows. Both sizes are multiples of 16, and codes are not nested.
//   `limit`, `slope` and `up_offset` are those of LinearSteps, of "swiglu" alone.
//   `chosen` experts are taken for a row, of `chosen_groups` of `groups` groups; `gating` is "softmax", "chosen" or
//   "sigmoid"; `normalise`, 0 or 1, with `weight_epsilon`; `weight_scale`. The norm is that of QuantLinear.
//   With `width` experts read rows `expert_x` [S, width] instead of norm(x), and y, residual and shared are as wide.
//   With `expert_norm` [hidden] they read x behind this norm, of the kind that `norm` names, and not what the router
//   reads. `sum_norm` is of experts behind their post_norm and `shared` without a gate.
//   `numbers` [S, chosen] are those of a row's experts, rising.
struct Experts {
  static constexpr const char* kName = "Experts";
  static constexpr ort::Port kInputs[] = {{"x", abi::kFloat},
                                          {"router", abi::kFloat},
                                          {"gate_up", abi::kUint8},
                                          {"down", abi::kUint8},
                                          {"norm_weight", abi::kFloat, abi::kOptional},
                                          {"norm_bias", abi::kFloat, abi::kOptional},
                                          {"router_bias", abi::kFloat, abi::kOptional},
                                          {"choice_bias", abi::kFloat, abi::kOptional},
                                          {"gate_up_bias", abi::kFloat, abi::kOptional},
                                          {"down_bias", abi::kFloat, abi::kOptional},
                                          {"residual", abi::kFloat, abi::kOptional},
                                          {"expert_x", abi::kFloat, abi::kOptional},
                                          {"shared", abi::kFloat, abi::kOptional},
                                          {"shared_gate", abi::kFloat, abi::kOptional},
                                          {"expert_scale", abi::kFloat, abi::kOptional},
                                          {"post_norm", abi::kFloat, abi::kOptional},
                                          {"expert_norm", abi::kFloat, abi::kOptional},
                                          {"sum_norm", abi::kFloat, abi::kOptional}};
  static constexpr ort::Port kOutputs[] = {{"y", abi::kFloat}, {"numbers", abi::kInt32, abi::kOptional}};

  abi::Status* create(ort::Attributes& attributes);
  abi::Status* compute(ort::OpContext& context) const;

  // Numbers of inputs.
  enum Input : int {
    kX,
    kRouter,
    kGateUp,
    kDown,
    kNorm,
    kNormBias,
    kRouterBias,
    kChoiceBias,
    kGateUpBias,
    kDownBias,
    kResidual,
    kExpertX,
    kShared,
    kSharedGate,
    kExpertScale,
    kPostNorm,
    kExpertNorm,
    kSumNorm
  };

  // What a call is about, checked; `between` is the number of features between the matrices.
  struct Call {
    Routing routing;
    RoundRows norm, expert_norm;  // a weight says whether there is one
    PackedParts gate_up, down;
    const float* x;  // [rows][width]: what experts read
    ExpertSum sum;
    LinearRows finish, finish_sum;  // the norm behind experts, and that behind the sum with what is shared
    int32_t* numbers;               // [rows][chosen] or nullptr
  };
  // Checks all inputs, makes the output, and describes the call, without scratch memory.
  abi::Status* check(ort::OpContext& context, Call* call) const;
  const LinearSteps& steps() const { return steps_; }
  int64_t width() const { return width_; }
  bool has_rows() const { return has_rows_; }  // of their own
  int64_t intermediate() const { return intermediate_; }

 private:
  // A stretch of one expert's work: groups of rows, or tiles.
  struct Piece {
    int64_t expert, begin, end;
  };
  abi::Status* read_routing(ort::Attributes& attributes);
  abi::Status* read_activation_of(ort::Attributes& attributes);
  // Norms rows for the router and for experts, if they are to be, and routes them.
  void route(const Call& call, float* normed, float* expert_normed) const;
  abi::Status* multiply(ort::OpContext& context, const Call& call) const;
  // The experts that rows have, with the numbers of their rows and the weights of these, [rows * chosen] each.
  std::vector<ExpertRows> gather(ort::OpContext& context, const Call& call, int32_t* numbers, float* weights) const;
  // Adds experts [begin, end) of `all`; `reads`, unless it is null, holds them.
  abi::Status* add_lot(ort::OpContext& context, const Call& call, ExpertRows* jobs, int64_t begin, int64_t end,
                       int64_t all, ReadExperts* reads) const;
  // Rounds groups of rows, and computes tiles and what is between the matrices of experts; then adds them, if `sum` is
  // not null.
  void compute_lot(const Call& call, const ExpertRows* jobs, const std::vector<Piece>& groups,
                   const std::vector<Piece>& tiles, const std::vector<Piece>& between_groups,
                   const ExpertSum* sum) const;
  // Expert number `index` in a matrix of all of them.
  PackedParts of_expert(const PackedParts& all, int64_t index) const;

  PackedMatrix gate_up_, down_;
  int64_t hidden_ = 0, intermediate_ = 0;
  int64_t width_ = 0;      // of what experts read and make
  bool has_rows_ = false;  // of their own
  Routing routing_{};
  LinearSteps steps_;
  float epsilon_ = 0.0f;
  bool is_layer_norm_ = false;
  const QuantLinearKernels* linear_ = nullptr;
  const ExpertsKernels* kernels_ = nullptr;
  mutable std::atomic<int> lanes_{2};  // threads that took part in the last run
};

}  // namespace edge_rt
