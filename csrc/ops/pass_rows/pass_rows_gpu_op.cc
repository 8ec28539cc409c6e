#include "ops/pass_rows/pass_rows_gpu_op.h"

#include <string>
#include <utility>
#include <vector>

namespace edge_rt::gpu {
namespace {

int64_t number_of(const void* address) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)); }

void check_replays(const ort::OpContext& context, const char* op, const RowInputs& inputs, int64_t positions,
                   PassStream& stream, const PassRows& pass) {
  const int32_t* const past_length = context.input(inputs.past_length).as<const int32_t>();
  const int32_t* const sequence_rows = context.input(inputs.sequence_rows).as<const int32_t>();
  const int64_t mapped = context.input(inputs.row_map).dims[1];
  if (!stream.inputs().is_first({number_of(past_length), number_of(pass.row_map), number_of(pass.parents),
                                 number_of(sequence_rows), mapped, positions, pass.rows, pass.done, pass.capacity,
                                 pass.window})) {
    return;
  }
  stream.check_replays(op, [=] {
    PassRows now = pass;
    now.past = *past_length;
    std::string problem;
    if (*sequence_rows != now.rows) {
      problem = "sequence_rows[0] is " + std::to_string(*sequence_rows) + ", the pass has " + std::to_string(now.rows) +
                " rows";
    }
    if (problem.empty()) problem = find_bad_rows(now, mapped);
    if (problem.empty()) {
      std::vector<int32_t> depths(static_cast<size_t>(now.done + now.rows));
      problem = find_depths(positions, depths.data(), &now);
    }
    return problem;
  });
}

}  // namespace

abi::Status* check_one_sequence(const ort::OpContext& context, size_t sequences) {
  if (sequences == 1) return nullptr;
  return context.error("past_length has %zu sequences, a GPU computes one in a pass", sequences);
}

const int32_t* prepare_rows(const ort::OpContext& context, const char* op, const RowInputs& inputs, int64_t positions,
                            PassStream& stream, PassRows* pass) {
  check_replays(context, op, inputs, positions, stream, *pass);
  const auto upload = [&](int index) {
    const ort::TensorView& input = context.input(index);
    return static_cast<const int32_t*>(stream.inputs().upload(input.data, sizeof(int32_t) * input.count));
  };
  const int32_t* const past = upload(inputs.past_length);
  if (past == nullptr) return nullptr;
  pass->row_map = upload(inputs.row_map);
  if (pass->row_map == nullptr) return nullptr;
  pass->parents = upload(inputs.parents);
  return pass->parents == nullptr ? nullptr : past;
}

}  // namespace edge_rt::gpu
