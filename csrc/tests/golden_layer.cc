// One transformer layer, put together of kernels as a graph puts it together of ops.
#include <cstdio>

#include "tests/golden_ops.h"

namespace edge_rt::golden {
namespace {

struct Shape {
  const char* name;
  int hidden, heads, kv_heads, head_dim, rotary, inner;
  WeightFormat format;
};

constexpr Shape kShapes[] = {{"small", 128, 4, 2, 32, 32, 256, WeightFormat::kW4M},
                             {"awkward", 96, 4, 1, 40, 24, 160, WeightFormat::kW4},
                             {"wide_codes", 64, 2, 2, 16, 16, 96, WeightFormat::kW8}};

class Layer {
 public:
  Layer(const KernelTable& kernels, const Shape& shape, int kv_format)
      : kernels_(kernels), shape_(shape), random_(shape.name), qkv_(random_, shape.format, width(), shape.hidden),
        output_(random_, shape.format, shape.hidden, shape.heads * shape.head_dim),
        gate_up_(random_, shape.format, 2 * shape.inner, shape.hidden),
        down_(random_, shape.format, shape.hidden, shape.inner), norm_(random_.uniform(shape.hidden, 2.0f)),
        attention_(shape.heads, shape.kv_heads, shape.head_dim, shape.rotary, kv_format, 64) {}

  std::vector<float> run(const std::vector<float>& x, const std::vector<int32_t>& parents, int64_t past) {
    const auto rows = static_cast<int64_t>(parents.size());
    LinearOptions normed, added;
    normed.norm_weight = norm_.data();
    const std::vector<float> qkv = linear(kernels_, qkv_, x, rows, normed);
    const std::vector<float> attended = attention_.run(kernels_, qkv, parents, past);
    added.residual = x.data();
    const std::vector<float> middle = linear(kernels_, output_, attended, rows, added);
    normed.paired = true;
    const std::vector<float> inner = linear(kernels_, gate_up_, middle, rows, normed);
    added.residual = middle.data();
    return linear(kernels_, down_, inner, rows, added);
  }

  void add_cache(Hash* hash) { hash->add(attention_.cache.as<uint8_t>(), attention_.cache_bytes()); }

 private:
  int width() const { return (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim; }

  const KernelTable& kernels_;
  Shape shape_;
  Random random_;
  Matrix qkv_, output_, gate_up_, down_;
  std::vector<float> norm_;
  Attention attention_;
};

std::vector<float> rows_of(const std::vector<float>& x, int64_t hidden, const std::vector<int32_t>& rows) {
  std::vector<float> out;
  for (int32_t row : rows) out.insert(out.end(), x.begin() + row * hidden, x.begin() + (row + 1) * hidden);
  return out;
}

// A prompt and a tree; then the prompt in two parts and one path of the tree token by token, which must not differ.
bool run_layer(const KernelTable& kernels, const Report& report, const Shape& shape, int format) {
  constexpr int64_t kPrompt = 37;
  const std::string name = std::string("layer.") + shape.name + "." + kKvFormats[format].name;
  Random random(name);
  const std::vector<float> prompt = random.uniform(kPrompt * shape.hidden, 1.0f);
  const std::vector<int32_t> parents = {-1, 0, 0, 1, 1, -1, 5, 3, 7};
  const std::vector<int32_t> path = {0, 1, 3, 7, 8};
  const std::vector<float> drafted = random.uniform(static_cast<int64_t>(parents.size()) * shape.hidden, 1.0f);

  Layer layer(kernels, shape, format);
  Hash hash;
  const std::vector<float> first = layer.run(prompt, chain(kPrompt), 0);
  const std::vector<float> tree = layer.run(drafted, parents, kPrompt);
  hash.add(first);
  hash.add(tree);
  layer.add_cache(&hash);
  report(name, hash.value());

  Layer plain(kernels, shape, format);
  constexpr int64_t kCut = 10;
  const auto cut = prompt.begin() + kCut * shape.hidden;
  std::vector<float> again = plain.run({prompt.begin(), cut}, chain(kCut), 0);
  const std::vector<float> rest = plain.run({cut, prompt.end()}, chain(kPrompt - kCut), kCut);
  again.insert(again.end(), rest.begin(), rest.end());
  std::vector<float> walked;
  for (size_t i = 0; i < path.size(); ++i) {
    const std::vector<float> y = plain.run(rows_of(drafted, shape.hidden, {path[i]}), {-1},
                                           kPrompt + static_cast<int64_t>(i));
    walked.insert(walked.end(), y.begin(), y.end());
  }
  const std::vector<float> wanted = rows_of(tree, shape.hidden, path);
  const bool same = again.size() == first.size() &&
                    std::memcmp(again.data(), first.data(), first.size() * sizeof(float)) == 0 &&
                    walked.size() == wanted.size() &&
                    std::memcmp(walked.data(), wanted.data(), wanted.size() * sizeof(float)) == 0;
  if (!same) std::fprintf(stderr, "%s: rows computed together differ from rows computed alone\n", name.c_str());
  return same;
}

}  // namespace

bool run_layers(const KernelTable& kernels, const Report& report) {
  bool same = true;
  for (const Shape& shape : kShapes) {
    for (int format = 0; format < kKvFormatCount; ++format) same = run_layer(kernels, report, shape, format) && same;
  }
  return same;
}

}  // namespace edge_rt::golden
