#include "ops/quant_embed/quant_embed_op.h"

#include <cmath>

#include "kernels/kernel_table.h"

namespace edge_rt {

abi::Status* QuantEmbed::create(ort::Attributes& attributes) {
  kernels_ = &kernel_table(attributes.isa()).quant_embed;
  if (abi::Status* bad = matrix_.create(attributes)) return bad;
  scale_ = attributes.real("scale", 1.0f);
  if (!std::isfinite(scale_)) return attributes.error("scale is not finite");
  return matrix_.parts() == 1 ? nullptr : attributes.error("format has %d names, must have 1", matrix_.parts());
}

std::string QuantEmbed::find_bad_id(const EmbedRows& job) {
  for (int64_t i = 0; i < job.rows; ++i) {
    if (job.ids[i] >= 0 && job.ids[i] < job.out_features) continue;
    return "ids[" + std::to_string(i) + "] is " + std::to_string(job.ids[i]) + ", must be 0 to " +
           std::to_string(job.out_features - 1);
  }
  return {};
}

abi::Status* QuantEmbed::check(ort::OpContext& context, EmbedRows* job) const {
  PackedParts weight;
  if (abi::Status* bad = matrix_.view(context, 1, &weight)) return bad;
  const int64_t rows = context.input(0).rank > 0 ? context.input(0).dims[0] : 0;
  if (abi::Status* bad = context.check_shape(0, {rows})) return bad;
  *job = {
      weight.parts[0], context.input(0).as<const int64_t>(), rows, matrix_.out_features, matrix_.in_features, scale_,
      nullptr};
  if (const std::string problem = find_bad_id(*job); !problem.empty()) return context.error("%s", problem.c_str());
  ort::TensorView y;
  if (abi::Status* bad = context.output(0, {rows, matrix_.in_features}, &y)) return bad;
  job->y = y.as<float>();
  return nullptr;
}

abi::Status* QuantEmbed::compute(ort::OpContext& context) const {
  EmbedRows job;
  if (abi::Status* bad = check(context, &job)) return bad;
  // A row is a copy of some hundred bytes: no work to be shared out.
  for (int64_t i = 0; i < job.rows; ++i) {
    kernels_->row(job.weight, job.ids[i], job.features, job.scale, job.y + i * job.features);
  }
  return nullptr;
}

}  // namespace edge_rt
