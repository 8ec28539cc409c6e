#include <algorithm>

#include "kernels/kernel_table.h"
#include "ops/short_conv/short_conv_op.h"

namespace edge_rt {
namespace {

constexpr int64_t kMaxChannels = int64_t{1} << 24;
constexpr int64_t kItemNumbers = 16384;  // of y, that a thread computes at a time: some microseconds

}  // namespace

abi::Status* ShortConv::create(ort::Attributes& attributes) {
  kernels_ = &kernel_table(attributes.isa()).short_conv;
  return nullptr;
}

abi::Status* ShortConv::check(ort::OpContext& context, std::vector<ConvPass>* passes, Depths* depths) const {
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(0, {-1, -1})) != nullptr || (bad = context.check_shape(5, {-1, -1})) != nullptr) {
    return bad;
  }
  const ort::TensorView &bcx = context.input(0), &weight = context.input(5);
  const int64_t taps = weight.dims[0], channels = weight.dims[1];
  if (taps < 1 || taps > kMaxTaps || channels < 1 || channels > kMaxChannels) {
    return context.error("weight is [%lld, %lld], must be 1 to %d taps of 1 to %lld channels",
                         static_cast<long long>(taps), static_cast<long long>(channels), kMaxTaps,
                         static_cast<long long>(kMaxChannels));
  }
  ConvPass all{};
  all.rows = bcx.dims[0];
  all.window = taps;
  all.channels = channels;
  if ((bad = context.check_shape(0, {all.rows, 3 * channels})) != nullptr ||
      (bad = context.check_shape(1, {-1, channels})) != nullptr ||
      (bad = context.check_shape(6, {channels})) != nullptr) {
    return bad;
  }
  all.capacity = context.input(1).dims[0];
  if ((bad = check_row_shapes(context, kRows, &all)) != nullptr) return bad;
  std::vector<PassRows> sequences;
  // Depths stay below the positions that row_map has: nothing else depends on them.
  const int64_t positions = context.input(kRows.row_map).dims[1];
  if ((bad = check_sequences(context, kRows, all, positions, &sequences, depths)) != nullptr) return bad;
  ort::TensorView y;
  if ((bad = context.output(0, {all.rows, channels}, &y)) != nullptr) return bad;
  all.bcx = bcx.as<const float>();
  all.weight = weight.as<const float>();
  all.bias = context.input(6).as<const float>();
  all.cache = context.input(1).as<float>();
  all.y = y.as<float>();
  for (const PassRows& rows : sequences) {
    static_cast<PassRows&>(passes->emplace_back(all)) = rows;
    all.bcx += rows.rows * 3 * channels;
    all.y += rows.rows * channels;
  }
  return nullptr;
}

abi::Status* ShortConv::compute(ort::OpContext& context) const {
  Depths depths;
  std::vector<ConvPass> passes;
  if (abi::Status* bad = check(context, &passes, &depths)) return bad;
  struct Item {
    const ConvPass* pass;
    int64_t begin;
  };
  const int64_t step = std::max<int64_t>(1, kItemNumbers / passes.front().channels);
  std::vector<Item> items;
  for (const ConvPass& pass : passes) {
    for (int64_t begin = 0; begin < pass.rows; begin += step) items.push_back({&pass, begin});
  }
  const auto body = [&](int64_t number) {
    const Item& item = items[static_cast<size_t>(number)];
    kernels_->rows(*item.pass, item.begin, std::min(item.begin + step, item.pass->rows));
  };
  run_phases(process_crew(), {make_phase(static_cast<int64_t>(items.size()), body)});
  return nullptr;
}

}  // namespace edge_rt
