#include "ops/quant_embed/quant_embed_op.h"

#include <algorithm>
#include <cmath>

#include "common/file_pages.h"
#include "kernels/kernel_table.h"

namespace edge_rt {
namespace {

// Rows that are read before pages are given back.
constexpr int64_t kRowsAtOnce = 16;

size_t tile_size(const PackedWeight& weight) { return static_cast<size_t>(weight.tile_bytes()); }

}  // namespace

abi::Status* QuantEmbed::create(ort::Attributes& attributes) {
  kernels_ = &kernel_table(attributes.isa()).quant_embed;
  if (abi::Status* bad = matrix_.create(attributes)) return bad;
  scale_ = attributes.real("scale", 1.0f);
  if (!std::isfinite(scale_)) return attributes.error("scale is not finite");
  const int64_t stays = attributes.integer("stays_in_file", 0);
  if (stays != 0 && stays != 1) {
    return attributes.error("stays_in_file is %lld, must be 0 or 1", static_cast<long long>(stays));
  }
  stays_in_file_ = stays == 1;
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
  const bool is_returned = job.rows > 0 && gives_back(job.weight);
  // A row is a copy of some hundred bytes: no work to be shared out.
  for (int64_t begin = 0; begin < job.rows; begin += kRowsAtOnce) {
    const int64_t end = std::min(begin + kRowsAtOnce, job.rows);
    for (int64_t i = begin; is_returned && i < end; ++i) {
      fetch_pages(job.weight.tile(job.ids[i] / kTileRows), tile_size(job.weight));
    }
    for (int64_t i = begin; i < end; ++i) {
      kernels_->row(job.weight, job.ids[i], job.features, job.scale, job.y + i * job.features);
    }
    if (is_returned) release_pages(job.weight.data, static_cast<size_t>(job.weight.bytes()));
  }
  return nullptr;
}

bool QuantEmbed::gives_back(const PackedWeight& weight) const {
  if (!stays_in_file_) return false;
  if (mapped_.load(std::memory_order_relaxed) == weight.data) return true;
  if (!is_mapped_file(weight.data, static_cast<size_t>(weight.bytes()))) return false;
  mapped_.store(weight.data, std::memory_order_relaxed);
  return true;
}

}  // namespace edge_rt
