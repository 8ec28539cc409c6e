#include "ops/spec_attention/spec_attention_gpu_op.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/alignment.h"
#include "ops/pass_rows/pass_rows_gpu_op.h"
#include "ops/spec_attention/spec_attention_gpu.h"

namespace edge_rt::gpu {
namespace {

// A recorded pass runs the kernels of the format that it was recorded with.
void check_format(const int32_t* formats, int64_t layer, int format, PassStream& stream) {
  stream.check_replays(SpecAttention::kName, [=]() -> std::string {
    if (formats[layer] == format) return "";
    return "kv_formats[" + std::to_string(layer) + "] is " + std::to_string(formats[layer]) + ", was " +
           std::to_string(format) + " when the pass was recorded";
  });
}

}  // namespace

abi::Status* GpuAttention::check(const ort::OpContext& context) const {
  return check_alignment(context, 1, kCacheAlignment);
}

size_t GpuAttention::scratch_bytes(const SpecAttention::Passes& passes) {
  size_t most = 0;
  for (const AttentionPass& pass : passes) most = std::max(most, attention_scratch_bytes(pass));
  return most;
}

bool GpuAttention::prepare(const ort::OpContext& context, int64_t layer, PassStream& stream,
                           SpecAttention::Passes* passes) {
  const RowInputs inputs{2, 3, 4, context.input_count() - 1};
  const std::vector<DeviceRows> rows =
      prepare_rows(context, SpecAttention::kName, inputs, context.input(6).dims[0], stream, *passes);
  if (rows.empty()) return false;
  check_format(context.input(5).as<const int32_t>(), layer, passes->front().format, stream);
  for (size_t i = 0; i < rows.size(); ++i) {
    AttentionPass& pass = (*passes)[i];
    pass.row_map = rows[i].row_map;
    pass.parents = rows[i].parents;
    const int64_t nodes = pass.done + pass.rows;
    const void* const tree = stream.inputs().derive({pass.parents}, attention_tree_bytes(nodes), [&](void* to) {
      return enqueue_attention_tree(&stream, pass.parents, nodes, to);
    });
    if (tree == nullptr) return false;
    places_.push_back({rows[i].past, tree});
  }
  return true;
}

bool GpuAttention::enqueue(PassStream& stream, const SpecAttention::Passes& passes, void* scratch) const {
  for (size_t i = 0; i < passes.size(); ++i) {
    if (!enqueue_attention(&stream, passes[i], places_[i].past, places_[i].tree, scratch)) return false;
  }
  return true;
}

abi::Status* GpuSpecAttention::enqueue(ort::OpContext& context, PassStream& stream) const {
  Depths depths;
  SpecAttention::Passes passes;
  GpuAttention attention;
  if (abi::Status* bad = op_.check(context, &passes, &depths)) return bad;
  if (abi::Status* bad = attention.check(context)) return bad;
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(GpuAttention::scratch_bytes(passes), &scratch)) return bad;
  // An error stays in the stream, where whoever runs the kernel finds it.
  if (attention.prepare(context, op_.layer(), stream, &passes)) attention.enqueue(stream, passes, scratch.data());
  return nullptr;
}

}  // namespace edge_rt::gpu
