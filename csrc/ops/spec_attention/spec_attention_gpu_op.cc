#include "ops/spec_attention/spec_attention_gpu_op.h"

#include <string>
#include <utility>
#include <vector>

#include "gpu/alignment.h"
#include "ops/pass_rows/pass_rows_check.h"
#include "ops/spec_attention/spec_attention_gpu.h"

namespace edge_rt::gpu {
namespace {

int64_t number_of(const void* address) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)); }

bool is_well(std::string problem, DriverError* error) {
  if (problem.empty()) return true;
  *error = {SpecAttention::kName, 0, std::move(problem)};
  return false;
}

// Layers alike are checked once.
void check_replays(const ort::OpContext& context, const AttentionPass& pass, PassStream& stream) {
  const int32_t* const past_length = context.input(2).as<const int32_t>();
  const int32_t* const sequence_rows = context.input(context.input_count() - 1).as<const int32_t>();
  const int64_t mapped = context.input(3).dims[1], positions = context.input(6).dims[0];
  if (!stream.inputs().is_first({number_of(past_length), number_of(pass.row_map), number_of(pass.parents),
                                 number_of(sequence_rows), mapped, positions, pass.rows, pass.done, pass.capacity,
                                 pass.window})) {
    return;
  }
  stream.check_replays([=, rows = PassRows(pass)](DriverError* error) {
    PassRows now = rows;
    now.past = *past_length;
    if (*sequence_rows != now.rows) {
      return is_well("sequence_rows[0] is " + std::to_string(*sequence_rows) + ", the pass has " +
                         std::to_string(now.rows) + " rows",
                     error);
    }
    if (!is_well(find_bad_rows(now, mapped), error)) return false;
    std::vector<int32_t> depths(static_cast<size_t>(now.done + now.rows));
    return is_well(find_depths(positions, depths.data(), &now), error);
  });
}

// A recorded pass runs the kernels of the format that it was recorded with.
void check_format(const int32_t* formats, int64_t layer, int format, PassStream& stream) {
  stream.check_replays([=](DriverError* error) {
    if (formats[layer] == format) return true;
    return is_well("kv_formats[" + std::to_string(layer) + "] is " + std::to_string(formats[layer]) + ", was " +
                       std::to_string(format) + " when the pass was recorded",
                   error);
  });
}

}  // namespace

abi::Status* GpuAttention::check(const ort::OpContext& context, const SpecAttention::Passes& passes) const {
  if (passes.size() > 1) {
    return context.error("past_length has %zu sequences, a GPU computes one in a pass", passes.size());
  }
  const AttentionPass& pass = passes.front();
  if (pass.shares_cache || pass.norms_values || pass.values_are_keys) {
    return context.error("%s is 1, which a GPU does not compute", pass.shares_cache   ? "shares_cache"
                                                                  : pass.norms_values ? "norms_values"
                                                                                      : "values_are_keys");
  }
  return check_alignment(context, 1, kCacheAlignment);
}

bool GpuAttention::prepare(const ort::OpContext& context, int64_t layer, PassStream& stream, AttentionPass* pass) {
  check_replays(context, *pass, stream);
  check_format(context.input(5).as<const int32_t>(), layer, pass->format, stream);
  const auto upload = [&](int index) {
    const ort::TensorView& input = context.input(index);
    return static_cast<const int32_t*>(stream.inputs().upload(input.data, sizeof(int32_t) * input.count));
  };
  past_ = upload(2);
  if (past_ == nullptr) return false;
  pass->row_map = upload(3);
  if (pass->row_map == nullptr) return false;
  const int32_t* const parents = pass->parents = upload(4);
  if (parents == nullptr) return false;
  const int64_t nodes = pass->done + pass->rows;
  tree_ = stream.inputs().derive(parents, attention_tree_bytes(nodes),
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
