#include "tests/gpu_attention_cases.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace edge_rt::golden {
namespace {

constexpr int kCapacity = 331;  // no multiple of 5: row_map would not be a permutation
const KernelTable& cpu_kernels() { return kernel_table(Isa::kScalar); }

// Each node follows an earlier one, or the committed rows.
std::vector<int32_t> random_tree(Random& random, int nodes) {
  std::vector<int32_t> parents;
  for (int i = 0; i < nodes; ++i) parents.push_back(random.below(i + 1) - 1);
  return parents;
}

struct Shape {
  std::string name;
  Attention attention;
};

std::vector<Shape> shapes_of(Random& random, int format) {
  std::vector<Shape> shapes;
  const auto add = [&](const char* name, int heads, int kv_heads, int dim, int rotary) -> Attention& {
    shapes.push_back({name, Attention(heads, kv_heads, dim, rotary, format, kCapacity)});
    return shapes.back().attention;
  };
  add("plain", 4, 2, 64, 64);
  Attention& awkward = add("awkward", 6, 2, 40, 24);
  awkward.window = 50;
  awkward.softcap = 3.0f;
  awkward.interleaved = true;
  awkward.q_norm = random.uniform(40, 2.0f);
  awkward.k_norm = random.uniform(40, 2.0f);
  awkward.sinks = random.uniform(6, 3.0f);
  Attention& odd = add("odd", 3, 1, 22, 10);
  odd.draw_key_constants(random);
  Attention& narrow = add("narrow_window", 2, 2, 16, 16);
  narrow.window = 5;
  narrow.query_scale = random.uniform(kCapacity, 2.0f);
  Attention& of_rows = add("norms_of_rows", 2, 1, 80, 0);
  of_rows.q_norm = random.uniform(2 * 80, 2.0f);
  of_rows.k_norm = random.uniform(80, 2.0f);
  Attention& behind = add("norms_behind", 2, 1, 128, 128);
  behind.q_norm = random.uniform(128, 2.0f);
  behind.k_norm = random.uniform(128, 2.0f);
  behind.norms_after_rotation = true;
  behind.draw_key_constants(random);
  Attention& gated = add("gated", 4, 2, 40, 24);
  gated.has_gates = true;
  gated.clip = 1.5f;
  Attention& of_keys = add("keys_as_values", 4, 2, 72, 24);
  of_keys.k_norm = random.uniform(72, 2.0f);
  of_keys.norms_values = of_keys.values_are_keys = true;
  add("large_group", 20, 1, 16, 16).window = 260;
  add("largest", 2, 1, kMaxHeadDim, 64);
  return shapes;
}

}  // namespace

AttentionCase::AttentionCase(const std::string& name, Attention attention, int64_t past, const LauncherOf& launcher_of)
    : name_(name), random_(name), attention_(std::move(attention)), past_(past), launcher_of_(launcher_of) {
  width_ = attention_.width();
  if (past > 0) run_on_cpu(cpu_kernels(), attention_, random_.uniform(past * width_, 2.0f), chain(past), 0, 0);
}

void AttentionCase::pass(const std::vector<int32_t>& parents, int seeds, int64_t done) {
  const auto rows = static_cast<int64_t>(parents.size()) - done;
  const std::vector<float> qkv = random_.uniform(rows * width_, 2.0f);
  Attention expected = attention_;
  const std::vector<float> y = run_on_cpu(cpu_kernels(), expected, qkv, parents, past_, done);
  for (int seed = 1; seed <= seeds; ++seed) {
    Attention other = attention_;
    const auto order = static_cast<uint64_t>(seed);
    const std::vector<float> found = run_on_gpu(launcher_of_(order), other, qkv.data(), parents, past_, done);
    compare(found.data(), y.data(), y.size() * sizeof(float), seed, "y");
    compare(other.cache.as<uint8_t>(), expected.cache.as<uint8_t>(), expected.cache_bytes(), seed, "the cache");
  }
  attention_ = std::move(expected);
}

void AttentionCase::compare(const void* found, const void* expected, size_t bytes, int seed, const char* what) const {
  const auto *a = static_cast<const uint8_t*>(found), *b = static_cast<const uint8_t*>(expected);
  size_t at = 0;
  while (at < bytes && a[at] == b[at]) ++at;
  if (at == bytes) return;
  std::fprintf(stderr, "%s, seed %d: %s differs from byte %zu of %zu on\n", name_.c_str(), seed, what, at, bytes);
  std::exit(1);
}

void run_attention_passes(int format, int seeds, bool all, const LauncherOf& launcher_of) {
  constexpr int kRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 33, 64, 100};
  constexpr int64_t kPasts[] = {0, 70, 300};
  const std::string prefix = std::string(kKvFormats[format].name) + ".";
  Random random(prefix + "shapes");
  const std::vector<Shape> shapes = shapes_of(random, format);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Shape& shape = shapes[i];
    const std::string name = prefix + shape.name + ".";
    for (const int rows : kRows) {
      if (!all && (i + static_cast<size_t>(rows + format)) % shapes.size() != 0) continue;
      // Shapes begin with another context each, so that all meet all in the end.
      const int64_t past =
          std::min<int64_t>(kPasts[(rows + static_cast<int>(shape.name.size())) % 3], kCapacity - rows - 2);
      AttentionCase one(name + std::to_string(rows) + "_behind_" + std::to_string(past), shape.attention, past,
                        launcher_of);
      one.pass(random_tree(random, rows), seeds);
      one.pass(chain(rows), seeds);
      if (rows % 6 != 0) continue;
      // Drafts in two passes, of which the second one's rows follow the first one's.
      const std::vector<int32_t> tree = random_tree(random, rows);
      one.pass(std::vector<int32_t>(tree.begin(), tree.begin() + 3), seeds);
      one.pass(tree, seeds, 3);
      one.commit(1);
      one.pass(chain(2), seeds);
    }
  }
}

void run_few_attention_passes(int format, int seeds) {
  Random random("few");
  for (const int dim : {64, 72}) {
    Attention attention(6, 2, dim, 24, format, 611);
    attention.q_norm = random.uniform(dim, 2.0f);
    attention.k_norm = random.uniform(dim, 2.0f);
    attention.norms_after_rotation = true;
    attention.draw_key_constants(random);
    AttentionCase one(std::string(kKvFormats[format].name) + ".few", attention, 520, fiber_launcher);
    for (int i = 0; i < 3; ++i) one.pass(random_tree(random, 9), seeds);
    one.pass(chain(18), seeds);
  }
}

}  // namespace edge_rt::golden
