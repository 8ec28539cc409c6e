#include "ops/spec_attention/spec_attention_gpu_op.h"

#include <string>
#include <utility>

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

abi::Status* GpuAttention::check(const ort::OpContext& context, const SpecAttention::Passes& passes) const {
  if (abi::Status* bad = check_one_sequence(context, passes.size())) return bad;
  return check_alignment(context, 1, kCacheAlignment);
}

bool GpuAttention::prepare(const ort::OpContext& context, int64_t layer, PassStream& stream, AttentionPass* pass) {
  const RowInputs inputs{2, 3, 4, context.input_count() - 1};
  past_ = prepare_rows(context, SpecAttention::kName, inputs, context.input(6).dims[0], stream, pass);
  if (past_ == nullptr) return false;
  check_format(context.input(5).as<const int32_t>(), layer, pass->format, stream);
  const int32_t* const parents = pass->parents;
  const int64_t nodes = pass->done + pass->rows;
  tree_ = stream.inputs().derive({parents}, attention_tree_bytes(nodes),
                                 [&](void* tree) { return enqueue_attention_tree(&stream, parents, nodes, tree); });
  return tree_ != nullptr;
}

bool GpuAttention::enqueue(PassStream& stream, const AttentionPass& pass, void* scratch) const {
  return enqueue_attention(&stream, pass, past_, tree_, scratch);
}

abi::Status* GpuSpecAttention::enqueue(ort::OpContext& context, PassStream& stream) const {
  Depths depths;
  SpecAttention::Passes passes;
  GpuAttention attention;
  if (abi::Status* bad = op_.check(context, &passes, &depths)) return bad;
  if (abi::Status* bad = attention.check(context, passes)) return bad;
  AttentionPass& pass = passes.front();
  ort::Scratch scratch;
  if (abi::Status* bad = context.scratch(attention_scratch_bytes(pass), &scratch)) return bad;
  // An error stays in the stream, where whoever runs the kernel finds it.
  if (attention.prepare(context, op_.layer(), stream, &pass)) attention.enqueue(stream, pass, scratch.data());
  return nullptr;
}

}  // namespace edge_rt::gpu
