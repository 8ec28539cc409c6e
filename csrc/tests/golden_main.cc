// Runs every kernel on fixed inputs and prints a hash of the output bits of each case, or compares them with those on
// record. The same bits are expected of every instruction set and every machine.
//
//   golden <instruction set>                 prints "case hash" lines
//   golden <instruction set> <golden_bits>   compares; 0 equal, 1 different, 77 not executable here
#include <cinttypes>
#include <cstdio>

#include "tests/golden_bits.h"
#include "tests/golden_ops.h"

extern "C" int edge_rt_select_isa(const char* name);

namespace edge_rt::golden {
namespace {

constexpr int kSkipped = 77;

int run(int argc, char** argv) {
  Isa isa;
  if (argc < 2 || argc > 3 || !isa_from_name(argv[1], &isa)) {
    std::fprintf(stderr, "use: golden <instruction set> [<file of expected bits>]\n");
    return 2;
  }
  if (!isa_is_usable(isa)) {
    std::printf("%s cannot be executed here: skipped\n", argv[1]);
    return kSkipped;
  }
  Bits expected, computed;
  if (argc == 3 && !read_bits(argv[2], &expected)) {
    std::fprintf(stderr, "%s holds no \"case hash\" lines\n", argv[2]);
    return 2;
  }
  const Report report = [&](const std::string& name, uint64_t hash) {
    computed[name] = hash;
    if (argc == 2) std::printf("%s %016" PRIx64 "\n", name.c_str(), hash);
  };
  if (edge_rt_select_isa(argv[1]) != 0) return 2;
  const KernelTable& kernels = kernel_table(isa);
  run_ops(kernels, report);
  run_heads(report);
  run_experts(report);
  if (!run_layers(kernels, report)) return 1;
  return argc == 3 ? compare_bits(computed, expected) : 0;
}

}  // namespace
}  // namespace edge_rt::golden

int main(int argc, char** argv) { return edge_rt::golden::run(argc, argv); }
