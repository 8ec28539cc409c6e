#include "tests/gpu_golden.h"

#include <cstdio>

#include "tests/golden_bits.h"
#include "tests/gpu_attention_run.h"
#include "tests/gpu_tables.h"

namespace edge_rt::golden {
namespace {

bool has_gpu_kernels(const std::string& name) {
  for (const char* op : {"quant_linear.", "quant_embed.", "row_top_k.", "spec_attention."}) {
    if (name.rfind(op, 0) == 0) return true;
  }
  return false;
}

}  // namespace

int compare_gpu_cases(const char* golden_bits, gpu::Launcher* launcher) {
  Bits all, expected, computed;
  if (!read_bits(golden_bits, &all)) {
    std::fprintf(stderr, "%s holds no golden bits\n", golden_bits);
    return 2;
  }
  for (const auto& [name, hash] : all) {
    if (has_gpu_kernels(name)) expected[name] = hash;
  }
  const Report report = [&](const std::string& name, uint64_t hash) { computed[name] = hash; };
  run_tables(gpu_kernels(launcher), report);
  run_attention_cases([&](Attention& attention, const std::vector<float>& qkv, const std::vector<int32_t>& parents,
                          int64_t past) { return run_on_gpu(launcher, attention, qkv.data(), parents, past, 0); },
                      report);
  return compare_bits(computed, expected);
}

}  // namespace edge_rt::golden
