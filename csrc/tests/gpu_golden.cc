#include "tests/gpu_golden.h"

#include <chrono>
#include <cstdio>

#include "tests/golden_bits.h"
#include "tests/gpu_attention_run.h"
#include "tests/gpu_tables.h"

namespace edge_rt::golden {
namespace {

bool has_gpu_kernels(const std::string& name) {
  for (const char* op : {"quant_linear.", "quant_embed.", "row_top_k.", "spec_attention.", "short_conv.", "state_conv.",
                         "gated_delta.", "ssm_scan."}) {
    if (name.rfind(op, 0) == 0) return true;
  }
  return false;
}

// Starts the kernels of a shard's cases; those of others are skipped, and so are their results.
class ShardLauncher : public gpu::Launcher {
 public:
  ShardLauncher(gpu::Launcher* inner, const Shard& shard) : inner_(inner), shard_(shard) {}

  using Launcher::launch;
  bool launch(const gpu::Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes) override {
    return !has_case() || inner_->launch(kernel, grid_x, grid_y, args, bytes);
  }
  // Of the case that is being computed, which is reported when it is done.
  bool has_case() const { return shard_.has(done_); }
  void end_case() { ++done_; }

 private:
  gpu::Launcher* inner_;
  Shard shard_;
  int64_t done_ = 0;
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

int compare_gpu_cases(const char* golden_bits, gpu::Launcher* launcher, const Shard& shard, bool is_verbose) {
  Bits all, expected, computed;
  if (!read_bits(golden_bits, &all)) {
    std::fprintf(stderr, "%s holds no golden bits\n", golden_bits);
    return 2;
  }
  for (const auto& [name, hash] : all) {
    if (has_gpu_kernels(name)) expected[name] = hash;
  }
  ShardLauncher of_shard(launcher, shard);
  double before = seconds();
  const Report report = [&](const std::string& name, uint64_t hash) {
    if (of_shard.has_case()) {
      computed[name] = hash;
      if (is_verbose) std::printf("%7.1f s %s\n", seconds() - before, name.c_str());
      std::fflush(stdout);
    } else {
      expected.erase(name);
    }
    of_shard.end_case();
    before = seconds();
  };
  run_tables(gpu_kernels(&of_shard), report);
  run_attention_cases([&](Attention& attention, const std::vector<float>& qkv, const std::vector<int32_t>& parents,
                          int64_t past) { return run_on_gpu(&of_shard, attention, qkv.data(), parents, past, 0); },
                      report);
  if (computed.empty()) {
    std::fprintf(stderr, "Shard %lld of %lld has no case\n", static_cast<long long>(shard.number),
                 static_cast<long long>(shard.count));
    return 2;
  }
  return compare_bits(computed, expected);
}

}  // namespace edge_rt::golden
