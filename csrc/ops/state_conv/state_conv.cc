#include <algorithm>

#include "common/crew.h"
#include "kernels/kernel_table.h"
#include "ops/state_conv/state_conv_op.h"

namespace edge_rt {
namespace {

enum Input : int { kConvWeight = kOwnInputs, kConvBias };

constexpr int64_t kMaxChannels = int64_t{1} << 24;
constexpr int64_t kItemNumbers = 16384;  // of y, that a thread computes at a time: some microseconds

}  // namespace

abi::Status* StateConv::create(ort::Attributes& attributes) {
  kernels_ = &kernel_table(attributes.isa()).state_conv;
  first_ = attributes.integer("first", 0);
  if (first_ >= 0 && first_ <= kMaxChannels) return nullptr;
  return attributes.error("first is %lld, must be 0 to %lld", static_cast<long long>(first_),
                          static_cast<long long>(kMaxChannels));
}

abi::Status* StateConv::check(ort::OpContext& context, StateRun* run, std::vector<StateConvPass>* passes) const {
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(kRowsIn, {-1, -1})) != nullptr ||
      (bad = context.check_shape(kConvWeight, {-1, -1})) != nullptr) {
    return bad;
  }
  const ort::TensorView &x = context.input(kRowsIn), &weight = context.input(kConvWeight);
  StateConvPass all{};
  all.rows = x.dims[0];
  all.taps = weight.dims[0];
  all.channels = weight.dims[1];
  if (all.taps < 1 || all.taps > kMaxStateTaps || all.channels < 1 || all.channels > kMaxChannels) {
    return context.error("weight is [%lld, %lld], must be 1 to %d taps of 1 to %lld channels",
                         static_cast<long long>(all.taps), static_cast<long long>(all.channels), kMaxStateTaps,
                         static_cast<long long>(kMaxChannels));
  }
  all.stride = x.dims[1];
  if (all.stride < first_ + all.channels) {
    return context.error("x has %lld columns, must have %lld from column %lld on", static_cast<long long>(all.stride),
                         static_cast<long long>(all.channels), static_cast<long long>(first_));
  }
  all.state_floats = (all.taps - 1) * all.channels;
  all.transition_floats = all.channels;
  if ((bad = context.check_shape(kConvBias, {all.channels})) != nullptr ||
      (bad = check_states(context, all, run)) != nullptr) {
    return bad;
  }
  ort::TensorView y;
  if ((bad = context.output(0, {all.rows, all.channels}, &y)) != nullptr) return bad;
  all.weight = weight.as<const float>();
  all.bias = context.input(kConvBias).as<const float>();
  for (const StatePass& of_sequence : run->passes) {
    const int64_t begin = of_sequence.steps - run->steps.data();
    StateConvPass& pass = passes->emplace_back(all);
    static_cast<StatePass&>(pass) = of_sequence;
    pass.x = x.as<const float>() + begin * all.stride + first_;
    pass.y = y.as<float>() + begin * all.channels;
  }
  return nullptr;
}

abi::Status* StateConv::compute(ort::OpContext& context) const {
  StateRun run;
  std::vector<StateConvPass> passes;
  if (abi::Status* bad = check(context, &run, &passes)) return bad;
  struct Item {
    const StateConvPass* pass;
    int64_t begin, end;
  };
  const int64_t step = std::max<int64_t>(1, kItemNumbers / passes.front().channels);
  std::vector<Item> items;
  for (const StateConvPass& pass : passes) {
    for (int64_t begin = 0; begin < pass.rows; begin += step) {
      items.push_back({&pass, begin, std::min(begin + step, pass.rows)});
    }
  }
  const auto body = [&](int64_t number) {
    const Item& item = items[static_cast<size_t>(number)];
    kernels_->rows(*item.pass, item.begin, item.end);
  };
  run_phases(process_crew(), {make_phase(static_cast<int64_t>(items.size()), body)});
  return nullptr;
}

}  // namespace edge_rt
