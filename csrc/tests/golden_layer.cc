// One transformer layer: put together of kernels as a graph puts it together of ops, and as one op.
#include <cstdio>

#include "tests/golden_node.h"
#include "tests/golden_ops.h"

namespace edge_rt::golden {
namespace {

struct Shape {
  const char* name;
  int hidden, heads, kv_heads, head_dim, rotary, inner;
  WeightFormat qkv, output, gate_up, down;
  bool has_long_prompt = false;
};

constexpr WeightFormat kW4M = WeightFormat::kW4M, kW4 = WeightFormat::kW4, kW8 = WeightFormat::kW8;
constexpr Shape kShapes[] = {
    {"small", 128, 4, 2, 32, 32, 256, kW4M, kW4M, kW4M, kW4M},
    {"awkward", 96, 4, 1, 40, 24, 160, kW4, kW4, kW4, kW4},
    {"wide_codes", 64, 2, 2, 16, 16, 96, kW8, kW8, kW8, kW8},
    {"k_quants", 256, 4, 2, 64, 64, 256, WeightFormat::kW4K, WeightFormat::kW6K, WeightFormat::kW5K,
     WeightFormat::kW2K},
    {"tables", 256, 4, 2, 64, 64, 256, WeightFormat::kT4K, WeightFormat::kMX4, WeightFormat::kW3K, WeightFormat::kT4},
    {"zero_points", 128, 4, 2, 32, 32, 256, WeightFormat::kW4Z64, WeightFormat::kW4Z32, WeightFormat::kW4Z128,
     WeightFormat::kW4Z128},
    {"nested", 128, 4, 2, 32, 32, 256, WeightFormat::kW8N, WeightFormat::kW8NUpper, WeightFormat::kW8N,
     WeightFormat::kW8N},
    {"mixed", 96, 3, 1, 20, 20, 80, kW8, WeightFormat::kF16, kW4, WeightFormat::kF32, true}};

// What layers of other models than llama's have besides, or do not have.
struct Family {
  const char* name;
  Activation activation = Activation::kSwiglu;
  bool has_biases = false, has_norms = true, has_post_norms = false, has_norm_biases = false, has_query_scale = false;
  float residual_scale = 1.0f;
  enum { kNoHeadNorms, kOfHeads, kOfRows, kBehindRotation } head_norms = kNoHeadNorms;
  bool rotates = true, has_gates = false;
  float clip = 0.0f;
};

constexpr Family kLlama{"llama"};

Family biased_relu() {
  Family family{"biased_relu"};
  family.activation = Activation::kRelu2;
  family.has_biases = family.has_norm_biases = true;
  family.rotates = false;
  return family;
}
Family post_normed() {
  Family family{"post_normed"};
  family.activation = Activation::kGeglu;
  family.has_post_norms = true;
  family.residual_scale = 0.75f;
  family.head_norms = Family::kOfHeads;
  return family;
}
Family normed_behind() {
  Family family{"normed_behind"};
  family.has_norms = false;
  family.has_post_norms = true;
  family.head_norms = Family::kOfRows;
  return family;
}
Family scaled_queries() {
  Family family{"scaled_queries"};
  family.has_biases = family.has_query_scale = true;
  family.head_norms = Family::kBehindRotation;
  return family;
}

Family gated_and_clipped() {
  Family family{"gated_and_clipped"};
  family.has_gates = true;
  family.clip = 0.5f;
  family.head_norms = Family::kOfHeads;
  return family;
}

class Layer {
 public:
  Layer(const KernelTable& kernels, const Shape& shape, int kv_format, int capacity, bool has_key_constants = false,
        const Family& family = kLlama)
      : kernels_(kernels), shape_(shape), family_(family), random_(shape.name),
        qkv_(random_, shape.qkv, width(), shape.hidden),
        output_(random_, shape.output, shape.hidden, shape.heads * shape.head_dim),
        gate_up_(random_, shape.gate_up, (is_gated(family.activation) ? 2 : 1) * shape.inner, shape.hidden),
        down_(random_, shape.down, shape.hidden, shape.inner), norm_(random_.uniform(shape.hidden, 2.0f)),
        attention_(shape.heads, shape.kv_heads, shape.head_dim, shape.rotary, kv_format, capacity) {
    if (has_key_constants) attention_.draw_key_constants(random_);
    draw_more(capacity);
  }

  // By kernels, one operator after the other.
  std::vector<float> run(const std::vector<float>& x, const std::vector<int32_t>& parents, int64_t past) {
    const auto rows = static_cast<int64_t>(parents.size());
    LinearOptions normed, added;
    if (family_.has_norms) normed.norm_weight = norm_.data();
    normed.norm_bias = pointer(norm_bias_);
    normed.is_layer_norm = family_.has_norm_biases;
    normed.bias = pointer(biases_[0]);
    normed.steps.activation = Activation::kNone;
    const std::vector<float> qkv = linear(kernels_, qkv_, x, rows, normed);
    const std::vector<float> attended = attention_.run(kernels_, qkv, parents, past);
    added.residual = x.data();
    added.post_norm = pointer(post_norms_[0]);
    added.bias = pointer(biases_[1]);
    added.steps = {Activation::kNone, 1.0f, 0.0f, family_.residual_scale};
    const std::vector<float> middle = linear(kernels_, output_, attended, rows, added);
    normed.paired = is_gated(family_.activation);
    normed.steps.activation = family_.activation;
    normed.bias = pointer(biases_[2]);
    const std::vector<float> inner = linear(kernels_, gate_up_, middle, rows, normed);
    added.residual = middle.data();
    added.post_norm = pointer(post_norms_[1]);
    added.bias = pointer(biases_[3]);
    return linear(kernels_, down_, inner, rows, added);
  }

  // By the one operator.
  std::vector<float> run_whole(const std::vector<float>& x, const std::vector<int32_t>& parents, int64_t past) {
    const int64_t rows = static_cast<int64_t>(parents.size()), hidden = shape_.hidden, angles = shape_.rotary / 2;
    const auto capacity = static_cast<int64_t>(attention_.row_map.size());
    const int64_t row_bytes = kv_row_bytes(kKvFormats[attention_.format], shape_.head_dim);
    const auto before = static_cast<int32_t>(past), format = static_cast<int32_t>(attention_.format);
    const auto all_rows = static_cast<int32_t>(rows);
    std::vector<Tensor> inputs = {tensor_of({rows, hidden}, x.data()),
                                  tensor_of({2, shape_.kv_heads, capacity, row_bytes}, attention_.cache.as<uint8_t>()),
                                  tensor_of({1}, &before),
                                  tensor_of({1, capacity}, attention_.row_map.data()),
                                  tensor_of({rows}, parents.data()),
                                  tensor_of({1}, &format),
                                  tensor_of({capacity, angles}, attention_.cos.data()),
                                  tensor_of({capacity, angles}, attention_.sin.data()),
                                  row_of(attention_.q_norm),
                                  row_of(attention_.k_norm),
                                  {},
                                  family_.has_norms ? row_of(norm_) : Tensor{},
                                  tensor_of(qkv_),
                                  tensor_of(output_),
                                  family_.has_norms ? row_of(norm_) : Tensor{},
                                  tensor_of(gate_up_),
                                  tensor_of(down_)};
    if (!attention_.key_centre.empty()) {
      const int64_t heads = shape_.kv_heads, dim = shape_.head_dim;
      inputs.push_back(tensor_of({heads, dim}, attention_.key_centre.data()));
      inputs.push_back(tensor_of({heads, dim}, attention_.key_balance.data()));
      inputs.push_back(tensor_of({heads, dim, dim}, attention_.key_feedback.data()));
    } else {
      inputs.insert(inputs.end(), 3, Tensor{});
    }
    if (std::strcmp(family_.name, kLlama.name) == 0) {
      inputs.insert(inputs.end(), 9, Tensor{});
    } else {
      for (const std::vector<float>& bias : biases_) inputs.push_back(row_of(bias));
      for (const std::vector<float>& norm : post_norms_) inputs.push_back(row_of(norm));
      inputs.push_back(row_of(attention_.query_scale));
      inputs.insert(inputs.end(), 2, row_of(norm_bias_));
    }
    inputs.push_back(tensor_of({1}, &all_rows));
    return run_node("DecoderLayer", attributes(), inputs, 1, 3);
  }

  void add_cache(Hash* hash) { hash->add(attention_.cache.as<uint8_t>(), attention_.cache_bytes()); }

 private:
  int width() const { return ((family_.has_gates ? 2 : 1) * shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim; }

  static Tensor tensor_of(const Matrix& matrix) {
    const PackedWeight packed = matrix.packed();
    return golden::tensor_of(
        {packed.tiles, packed.blocks / facts(packed.format).unit_blocks, stored_unit_bytes(packed.format)},
        packed.data);
  }
  template <class T>
  static Tensor tensor_of(std::vector<int64_t> dims, const T* data) {
    return golden::tensor_of(std::move(dims), data);
  }

  static const float* pointer(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }
  static Tensor row_of(const std::vector<float>& values) {
    return values.empty() ? Tensor{} : tensor_of({static_cast<int64_t>(values.size())}, values.data());
  }

  // What the family has besides; a llama draws nothing.
  void draw_more(int capacity) {
    const int64_t hidden = shape_.hidden, dim = shape_.head_dim;
    if (family_.has_biases) {
      const int64_t sizes[] = {qkv_.outputs, hidden, gate_up_.outputs, hidden};
      for (int i = 0; i < 4; ++i) biases_[i] = random_.uniform(sizes[i], 1.0f);
    }
    for (std::vector<float>& norm : post_norms_) {
      if (family_.has_post_norms) norm = random_.uniform(hidden, 2.0f);
    }
    if (family_.has_norm_biases) norm_bias_ = random_.uniform(hidden, 1.0f);
    if (family_.has_query_scale) attention_.query_scale = random_.uniform(capacity, 2.0f);
    if (family_.head_norms != Family::kNoHeadNorms) {
      const bool of_rows = family_.head_norms == Family::kOfRows;
      attention_.q_norm = random_.uniform(of_rows ? shape_.heads * dim : dim, 2.0f);
      attention_.k_norm = random_.uniform(of_rows ? shape_.kv_heads * dim : dim, 2.0f);
      attention_.epsilon = kLinearEpsilon;
      attention_.norms_after_rotation = family_.head_norms == Family::kBehindRotation;
    }
    attention_.rotates = family_.rotates;
    attention_.has_gates = family_.has_gates;
    attention_.clip = family_.clip;
  }

  // Numbers that `linear` and Attention::run have too.
  std::vector<fake::Attribute> attributes() const {
    std::vector<fake::Attribute> all;
    const auto add = [&](const char* name, fake::Attribute::Kind kind, int64_t integer, float real, const char* text) {
      all.push_back({name, kind, integer, real, text});
    };
    const auto integer = [&](const char* name, int64_t value) { add(name, fake::Attribute::kInteger, value, 0, ""); };
    const auto text = [&](const char* name, WeightFormat format) {
      add(name, fake::Attribute::kText, 0, 0, format_name(format));
    };
    integer("num_heads", shape_.heads);
    integer("num_kv_heads", shape_.kv_heads);
    integer("head_dim", shape_.head_dim);
    integer("layer", 0);
    add("scale", fake::Attribute::kReal, 0, kAttentionScale, "");
    add("epsilon", fake::Attribute::kReal, 0, kLinearEpsilon, "");
    integer("hidden", shape_.hidden);
    integer("intermediate", shape_.inner);
    text("qkv_format", shape_.qkv);
    text("output_format", shape_.output);
    text("gate_up_format", shape_.gate_up);
    text("down_format", shape_.down);
    integer("rotate", family_.rotates ? 1 : 0);
    integer("gated", family_.has_gates ? 1 : 0);
    add("clip", fake::Attribute::kReal, 0, family_.clip, "");
    integer("norm_after_rotation", family_.head_norms == Family::kBehindRotation ? 1 : 0);
    constexpr const char* kNames[] = {"none", "swiglu", "geglu", "relu2"};
    add("activation", fake::Attribute::kText, 0, 0, kNames[static_cast<int>(family_.activation)]);
    add("residual_scale", fake::Attribute::kReal, 0, family_.residual_scale, "");
    return all;
  }

  const KernelTable& kernels_;
  Shape shape_;
  Family family_;
  Random random_;
  Matrix qkv_, output_, gate_up_, down_;
  std::vector<float> norm_;
  std::vector<float> biases_[4], post_norms_[2], norm_bias_;  // empty: none
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

  Layer layer(kernels, shape, format, 64);
  Hash hash;
  const std::vector<float> first = layer.run(prompt, chain(kPrompt), 0);
  const std::vector<float> tree = layer.run(drafted, parents, kPrompt);
  hash.add(first);
  hash.add(tree);
  layer.add_cache(&hash);
  report(name, hash.value());

  Layer plain(kernels, shape, format, 64);
  constexpr int64_t kCut = 10;
  const auto cut = prompt.begin() + kCut * shape.hidden;
  std::vector<float> again = plain.run({prompt.begin(), cut}, chain(kCut), 0);
  const std::vector<float> rest = plain.run({cut, prompt.end()}, chain(kPrompt - kCut), kCut);
  again.insert(again.end(), rest.begin(), rest.end());
  std::vector<float> walked;
  for (size_t i = 0; i < path.size(); ++i) {
    const std::vector<float> y =
        plain.run(rows_of(drafted, shape.hidden, {path[i]}), {-1}, kPrompt + static_cast<int64_t>(i));
    walked.insert(walked.end(), y.begin(), y.end());
  }
  const std::vector<float> wanted = rows_of(tree, shape.hidden, path);
  const bool same =
      again.size() == first.size() && std::memcmp(again.data(), first.data(), first.size() * sizeof(float)) == 0 &&
      walked.size() == wanted.size() && std::memcmp(walked.data(), wanted.data(), wanted.size() * sizeof(float)) == 0;
  if (!same) std::fprintf(stderr, "%s: rows computed together differ from rows computed alone\n", name.c_str());
  return same;
}

// DecoderLayer with few rows, one, a prompt, and a tree, which ends behind the second span of keys where the prompt is
// long; its bits must be those of its parts.
bool run_decoder_layer(const KernelTable& kernels, const Report& report, const Shape& shape, int format,
                       bool has_key_constants = false, const Family& family = kLlama) {
  const std::string kind = std::strcmp(family.name, kLlama.name) == 0 ? "" : std::string(".") + family.name;
  const std::string name = std::string("decoder_layer.") + shape.name + "." + kKvFormats[format].name +
                           (has_key_constants ? ".key_constants" : "") + kind;
  Random random(name);
  const int prompt = shape.has_long_prompt ? 484 : 30, capacity = prompt + 39;  // 69 and 523: 5 divides neither
  Layer whole(kernels, shape, format, capacity, has_key_constants, family);
  Layer parts(kernels, shape, format, capacity, has_key_constants, family);
  Hash hash, expected;
  const auto pass = [&](const std::vector<int32_t>& parents, int64_t past) {
    const std::vector<float> x = random.uniform(static_cast<int64_t>(parents.size()) * shape.hidden, 1.0f);
    hash.add(whole.run_whole(x, parents, past));
    expected.add(parts.run(x, parents, past));
  };
  pass(chain(7), 0);
  pass(chain(1), 7);
  pass(chain(prompt), 8);
  pass(chain(17), prompt + 8);
  pass(chain(1), prompt + 25);
  pass({-1, 0, 0, 1, 1, -1, 5, 3, 7}, prompt + 26);
  whole.add_cache(&hash);
  parts.add_cache(&expected);
  report(name, hash.value());
  const bool same = hash.value() == expected.value();
  if (!same) std::fprintf(stderr, "%s: the layer as one op differs from its parts\n", name.c_str());
  return same;
}

}  // namespace

bool run_layers(const KernelTable& kernels, const Report& report) {
  bool same = true;
  for (const Shape& shape : kShapes) {
    for (int format = 0; format < kKvFormatCount; ++format) {
      same = run_layer(kernels, report, shape, format) && same;
      same = run_decoder_layer(kernels, report, shape, format) && same;
    }
    same = run_decoder_layer(kernels, report, shape, kKvInt4, true) && same;
    for (const Family& family :
         {biased_relu(), post_normed(), normed_behind(), scaled_queries(), gated_and_clipped()}) {
      for (const int format : {kKvF16, kKvInt8, kKvInt4}) {
        same = run_decoder_layer(kernels, report, shape, format, format == kKvInt4, family) && same;
      }
    }
  }
  return same;
}

}  // namespace edge_rt::golden
