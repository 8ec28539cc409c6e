#include "tests/gpu_golden.h"

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <utility>
#include <vector>

#include "tests/golden_bits.h"
#include "tests/gpu_attention_run.h"
#include "tests/gpu_experts_run.h"
#include "tests/gpu_tables.h"

namespace edge_rt::golden {
namespace {

bool has_gpu_kernels(const std::string& name) {
  for (const char* op : {"quant_linear.", "quant_embed.", "row_top_k.", "spec_attention.", "short_conv.", "state_conv.",
                         "gated_delta.", "ssm_scan.", "experts."}) {
    if (name.rfind(op, 0) == 0) return true;
  }
  return false;
}

// Starts the kernels of cases that are wanted, by their numbers; those of others are skipped, and so are their results.
class ChosenLauncher : public gpu::Launcher {
 public:
  using Wanted = std::function<bool(int64_t)>;
  ChosenLauncher(gpu::Launcher* inner, Wanted wanted) : inner_(inner), wanted_(std::move(wanted)) {}

  gpu::Traits traits() const override { return inner_->traits(); }
  using Launcher::launch;
  bool launch(const gpu::Kernel& kernel, int grid_x, int grid_y, const void* args, size_t bytes) override {
    return !has_case() || inner_->launch(kernel, grid_x, grid_y, args, bytes);
  }
  // Of the case that is being computed, which is reported when it is done.
  bool has_case() const { return wanted_(done_); }
  void end_case() { ++done_; }

 private:
  gpu::Launcher* inner_;
  Wanted wanted_;
  int64_t done_ = 0;
};

void run_cases(ChosenLauncher* launcher, const Report& report) {
  run_tables(gpu_kernels(launcher), report);
  run_attention_cases([&](Attention& attention, const std::vector<float>& qkv, const std::vector<int32_t>& parents,
                          int64_t past) { return run_on_gpu(launcher, attention, qkv.data(), parents, past, 0); },
                      report);
  run_experts(experts_of(launcher), report);
}

// Of all cases, in their order, whether a name has a text; without a text nothing.
std::vector<bool> cases_with(const std::string& text, gpu::Launcher* launcher) {
  std::vector<bool> found;
  if (text.empty()) return found;
  ChosenLauncher none(launcher, [](int64_t) { return false; });
  run_cases(&none, [&](const std::string& name, uint64_t) { found.push_back(name.find(text) != std::string::npos); });
  return found;
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

bool read_shard(const char* text, Shard* out) {
  int read = 0;
  return std::sscanf(text, "%" SCNd64 "/%" SCNd64 "%n", &out->number, &out->count, &read) == 2 && text[read] == '\0' &&
         0 <= out->number && out->number < out->count;
}

int compare_gpu_cases(const char* golden_bits, gpu::Launcher* launcher, const Selection& selection, bool is_verbose) {
  Bits all, expected, computed;
  if (!read_bits(golden_bits, &all)) {
    std::fprintf(stderr, "%s holds no golden bits\n", golden_bits);
    return 2;
  }
  for (const auto& [name, hash] : all) {
    if (has_gpu_kernels(name)) expected[name] = hash;
  }
  const std::vector<bool> with_text = cases_with(selection.text, launcher);
  ChosenLauncher chosen(launcher, [&](int64_t number) {
    return selection.shard.has(number) && (with_text.empty() || with_text[static_cast<size_t>(number)]);
  });
  int missing = 0;
  double before = seconds();
  run_cases(&chosen, [&](const std::string& name, uint64_t hash) {
    const bool is_missing = selection.lacks_kernels && selection.lacks_kernels();
    if (!chosen.has_case() || is_missing) {
      missing += is_missing ? 1 : 0;
      if (is_missing && is_verbose) std::printf("  missing %s\n", name.c_str());
      expected.erase(name);
    } else {
      computed[name] = hash;
      if (is_verbose) std::printf("%7.1f s %s\n", seconds() - before, name.c_str());
      std::fflush(stdout);
    }
    chosen.end_case();
    before = seconds();
  });
  if (missing > 0) std::printf("%d cases ask for kernels that are not there\n", missing);
  if (computed.empty()) {
    std::fprintf(stderr, "No case was computed\n");
    return 2;
  }
  return compare_bits(computed, expected);
}

}  // namespace edge_rt::golden
