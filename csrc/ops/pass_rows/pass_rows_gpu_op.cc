#include "ops/pass_rows/pass_rows_gpu_op.h"

#include <string>

namespace edge_rt::gpu {
namespace {

int64_t number_of(const void* address) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)); }

void check_replays(const ort::OpContext& context, const char* op, const RowInputs& inputs, int64_t positions,
                   PassStream& stream, const std::vector<PassRows>& passes) {
  const int32_t* const past_length = context.input(inputs.past_length).as<const int32_t>();
  const int32_t* const sequence_rows = context.input(inputs.sequence_rows).as<const int32_t>();
  const int64_t mapped = context.input(inputs.row_map).dims[1];
  const PassRows& first = passes.front();
  std::vector<int64_t> numbers{number_of(past_length),
                               number_of(first.row_map),
                               number_of(first.parents),
                               number_of(sequence_rows),
                               mapped,
                               positions,
                               first.done,
                               first.capacity,
                               first.window};
  for (const PassRows& pass : passes) numbers.push_back(pass.rows);
  if (!stream.inputs().is_first(numbers)) return;
  stream.check_replays(op, [=] {
    std::vector<PassRows> now = passes;
    int64_t nodes = 0;
    for (const PassRows& pass : now) nodes += pass.done + pass.rows;
    std::vector<int32_t> depths(static_cast<size_t>(nodes));
    return find_bad_sequences(past_length, sequence_rows, mapped, positions, depths.data(), &now);
  });
}

}  // namespace

std::vector<DeviceRows> prepare_rows(const ort::OpContext& context, const char* op, const RowInputs& inputs,
                                     int64_t positions, PassStream& stream, const std::vector<PassRows>& passes) {
  check_replays(context, op, inputs, positions, stream, passes);
  const auto upload = [&](int index) {
    const ort::TensorView& input = context.input(index);
    return static_cast<const int32_t*>(stream.inputs().upload(input.data, sizeof(int32_t) * input.count));
  };
  const int32_t* const past = upload(inputs.past_length);
  const int32_t* const row_map = past == nullptr ? nullptr : upload(inputs.row_map);
  const int32_t* const parents = row_map == nullptr ? nullptr : upload(inputs.parents);
  if (parents == nullptr) return {};
  const PassRows& first = passes.front();
  std::vector<DeviceRows> out;
  for (const PassRows& pass : passes) {
    out.push_back(
        {past + out.size(), row_map + (pass.row_map - first.row_map), parents + (pass.parents - first.parents)});
  }
  return out;
}

}  // namespace edge_rt::gpu
