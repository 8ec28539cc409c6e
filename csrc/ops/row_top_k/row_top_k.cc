#include <algorithm>

#include "kernels/kernel_table.h"
#include "ops/row_top_k/row_top_k_op.h"

namespace edge_rt {

abi::Status* RowTopK::create(ort::Attributes& attributes) {
  k_ = attributes.integer("k");
  if (k_ < 1 || k_ > kMaxTopK) {
    return attributes.error("k is %lld, must be 1 to %d", static_cast<long long>(k_), kMaxTopK);
  }
  kernels_ = &kernel_table(attributes.isa()).row_top_k;
  return nullptr;
}

abi::Status* RowTopK::check(ort::OpContext& context, TopKRows* job) const {
  if (abi::Status* bad = context.check_shape(0, {-1, -1})) return bad;
  const ort::TensorView& logits = context.input(0);
  const int64_t rows = logits.dims[0], width = logits.dims[1];
  if (width < k_ || width > INT32_MAX) {
    return context.error("logits has %lld columns, k is %lld", static_cast<long long>(width),
                         static_cast<long long>(k_));
  }
  ort::TensorView ids, values, sums;
  if (abi::Status* bad = context.output(0, {rows, k_}, &ids)) return bad;
  if (abi::Status* bad = context.output(1, {rows, k_}, &values)) return bad;
  if (abi::Status* bad = context.output(2, {rows}, &sums)) return bad;
  *job = {logits.as<const float>(), rows, width, static_cast<int>(k_), nullptr, ids.as<int32_t>(), values.as<float>(),
          sums.as<float>()};
  return nullptr;
}

abi::Status* RowTopK::compute(ort::OpContext& context) const {
  TopKRows job;
  if (abi::Status* bad = check(context, &job)) return bad;
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(job.part_bytes(), &scratch)) return bad;
  job.parts = scratch.as<TopKPart>();
  const int64_t parts = job.part_count();
  auto part = [&](int64_t item) {
    const int64_t begin = item % parts * kTopKPart;
    kernels_->part(job.logits + item / parts * job.width, begin, std::min(begin + kTopKPart, job.width), job.k,
                   &job.parts[item]);
  };
  auto join = [&](int64_t row) {
    kernels_->join(job.parts + row * parts, parts, job.k, job.ids + row * job.k, job.values + row * job.k,
                   job.log_sum_exp + row);
  };
  run_phases(process_crew(), {make_phase(job.rows * parts, part), make_phase(job.rows, join)});
  return nullptr;
}

}  // namespace edge_rt
