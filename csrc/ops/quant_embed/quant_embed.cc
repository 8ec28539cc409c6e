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

abi::Status* QuantEmbed::compute(ort::OpContext& context) const {
  PackedParts weight;
  if (abi::Status* bad = matrix_.view(context, 1, &weight)) return bad;
  const int64_t rows = context.input(0).rank > 0 ? context.input(0).dims[0] : 0;
  if (abi::Status* bad = context.check_shape(0, {rows})) return bad;
  const int64_t* ids = context.input(0).as<const int64_t>();
  for (int64_t i = 0; i < rows; ++i) {
    if (ids[i] < 0 || ids[i] >= matrix_.out_features) {
      return context.error("ids[%lld] is %lld, must be 0 to %lld", static_cast<long long>(i),
                           static_cast<long long>(ids[i]), static_cast<long long>(matrix_.out_features - 1));
    }
  }
  ort::TensorView y;
  if (abi::Status* bad = context.output(0, {rows, matrix_.in_features}, &y)) return bad;
  // A row is a copy of some hundred bytes: no work to be shared out.
  for (int64_t i = 0; i < rows; ++i) {
    kernels_->row(weight.parts[0], ids[i], matrix_.in_features, scale_, y.as<float>() + i * matrix_.in_features);
  }
  return nullptr;
}

}  // namespace edge_rt
