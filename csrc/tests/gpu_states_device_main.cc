// Convolutions, ops with states, and Experts on a GPU by way of its driver, in shapes that are drawn: the bits of the
// CPU's scalar kernels.
//
//   gpu_states_vulkan <folder of SPIR-V>           some shapes
//   gpu_states_vulkan <folder of SPIR-V> all       many
#include <cstdio>
#include <map>

#include "tests/golden_ops.h"
#include "tests/gpu_device_launcher.h"
#include "tests/gpu_experts_run.h"
#include "tests/gpu_tables.h"

namespace edge_rt::golden {
namespace {

int run(int argc, char** argv) {
  bool all = false;
  gpu::DeviceLauncher* const launcher = gpu::DeviceLauncher::open_for_cases(argc, argv, &all);
  if (launcher == nullptr) return 2;
  const KernelTable kernels = gpu_kernels(launcher);
  const NodeRunner experts = experts_of(launcher);
  int cases = 0, wrong = 0, strange = 0;
  for (uint64_t seed = 0; seed < (all ? 60 : 4); ++seed) {
    std::map<std::string, uint64_t> expected;
    const Report keep = [&](const std::string& name, uint64_t hash) { expected[name] = hash; };
    run_drawn_convs(kernel_table(Isa::kScalar), seed, keep);
    run_drawn_states(kernel_table(Isa::kScalar), seed, keep);
    run_drawn_experts([](const auto& attributes, const auto& inputs, const auto& outputs,
                         int threads) { return run_node("Experts", attributes, inputs, outputs, threads); },
                      seed, keep);
    const Report compare = [&](const std::string& name, uint64_t hash) {
      ++cases;
      if (name.find(".nan") != std::string::npos) ++strange;
      if (expected.at(name) == hash) return;
      ++wrong;
      std::printf("seed %d: %s has other bits than the CPU's\n", static_cast<int>(seed), name.c_str());
    };
    run_drawn_convs(kernels, seed, compare);
    run_drawn_states(kernels, seed, compare);
    run_drawn_experts(experts, seed, compare);
    std::fflush(stdout);
  }
  std::printf("%d cases, %d of them with scores that are no numbers, %d different\n", cases, strange, wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace edge_rt::golden

int main(int argc, char** argv) { edge_rt::gpu::end_program(edge_rt::golden::run(argc, argv)); }
