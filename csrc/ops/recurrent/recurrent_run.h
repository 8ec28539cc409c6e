// How the work of operators with matrices as states is distributed over threads.
#pragma once

#include <vector>

#include "common/crew.h"
#include "ops/recurrent/recurrent.h"
#include "ort/op.h"

namespace edge_rt {

// Rows from which on a task is one stripe; below, a whole head, to be worth its claiming.
constexpr int64_t kManyRows = 4;

// Runs the kernels over sequences of one shape, with rows of `row_floats` prepared numbers, and `levels` stripes of
// scratch memory for every task.
template <class Pass>
abi::Status* run_matrices(ort::OpContext& context, const MatrixKernels<Pass>& kernels, std::vector<Pass>& passes,
                          int64_t row_floats, int64_t levels) {
  const MatrixShape& shape = passes.front().shape;
  struct Row {
    const Pass* pass;
    int64_t row;
  };
  struct Task {
    const Pass* pass;
    int64_t head, begin, end;
  };
  std::vector<Row> rows;
  std::vector<Task> tasks;
  for (const Pass& pass : passes) {
    for (int64_t i = 0; i < pass.rows; ++i) rows.push_back({&pass, i});
    const int64_t step = pass.rows >= kManyRows ? 1 : shape.stripes();
    for (int64_t head = 0; head < shape.value_heads; ++head) {
      for (int64_t begin = 0; begin < shape.stripes(); begin += step) {
        tasks.push_back({&pass, head, begin, begin + step});
      }
    }
  }
  const int64_t row_count = static_cast<int64_t>(rows.size()), prepared = row_count * row_floats,
                of_worker = levels * shape.stripe_floats();
  ort::Scratch scratch;
  if (abi::Status* bad =
          context.scratch(static_cast<size_t>(prepared + kMaxWorkers * of_worker) * sizeof(float), &scratch)) {
    return bad;
  }
  float* next = scratch.as<float>();
  for (Pass& pass : passes) {
    pass.prepared = next;
    next += pass.rows * row_floats;
  }
  const auto prepare = [&](int64_t item) {
    const Row& row = rows[static_cast<size_t>(item)];
    kernels.prepare(*row.pass, row.row);
  };
  const auto advance = [&](int64_t item, int worker) {
    const Task& task = tasks[static_cast<size_t>(item)];
    float* const own = scratch.as<float>() + prepared + worker * of_worker;
    for (int64_t stripe = task.begin; stripe < task.end; ++stripe) kernels.stripe(*task.pass, task.head, stripe, own);
  };
  const auto finish = [&](int64_t item) {
    const Row& row = rows[static_cast<size_t>(item)];
    kernels.finish(*row.pass, row.row);
  };
  run_phases(process_crew(), {make_phase(row_count, prepare), make_phase(static_cast<int64_t>(tasks.size()), advance),
                              make_phase(row_count, finish)});
  return nullptr;
}

}  // namespace edge_rt
