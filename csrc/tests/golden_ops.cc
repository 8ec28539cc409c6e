#include "tests/golden_ops.h"

#include <cstring>

namespace edge_rt::golden {
namespace {

// What few models have behind a product, and before it.
void run_linear_steps(const KernelTable& kernels, const Report& report, const std::string& prefix,
                      const Matrix& matrix) {
  constexpr int64_t kRows = 5;
  Random random(prefix + "steps");
  const int64_t inputs = matrix.inputs, outputs = matrix.outputs;
  const std::vector<float> x = random.uniform(kRows * inputs, 3.0f), norm = random.uniform(inputs, 2.0f);
  const std::vector<float> norm_bias = random.uniform(inputs, 1.0f), bias = random.uniform(outputs, 1.0f);
  const std::vector<float> gate = random.uniform(kRows * outputs, 6.0f), post = random.uniform(outputs, 2.0f);
  const std::vector<float> residual = random.uniform(kRows * outputs, 2.0f);
  const auto run = [&](const char* name, const LinearOptions& options) {
    Hash hash;
    hash.add(linear(kernels, matrix, x, kRows, options, &hash));
    report(prefix + name, hash.value());
  };
  LinearOptions options;
  options.gate = gate.data();
  options.steps.activation = Activation::kGeglu;
  run("geglu_gate", options);
  if (outputs % (2 * kTileRows) == 0) {
    options.gate = nullptr;
    options.bias = bias.data();
    options.paired = true;
    run("geglu", options);
  }
  options = {};
  options.bias = bias.data();
  options.steps = {Activation::kRelu2, 0.75f, 3.0f, 1.0f};
  run("relu2_scaled_capped", options);
  options.steps = {Activation::kNone, 1.0f, 0.0f, 0.375f};
  options.residual = residual.data();
  options.norm_weight = norm.data();
  options.is_layer_norm = true;
  run("layer_norm_residual_scale", options);
  options.norm_bias = norm_bias.data();
  options.post_norm = post.data();
  run("layer_norm_bias_post_norm", options);
}

// A product that is its own gate, and norms of groups of a row.
void run_linear_groups(const KernelTable& kernels, const Report& report, WeightFormat format) {
  constexpr int64_t kRows = 11, kOutputs = 72, kInputs = 96;
  const std::string prefix = std::string("quant_linear.") + format_name(format) + ".groups.";
  Random random(prefix);
  const Matrix matrix(random, format, kOutputs, kInputs);
  const std::vector<float> x = random.uniform(kRows * kInputs, 3.0f), gate = random.uniform(kRows * kOutputs, 6.0f);
  const std::vector<float> post = random.uniform(kOutputs, 2.0f), residual = random.uniform(kRows * kOutputs, 2.0f);
  const auto run = [&](const std::string& name, const LinearOptions& options) {
    Hash hash;
    hash.add(linear(kernels, matrix, x, kRows, options, &hash));
    report(prefix + name, hash.value());
  };
  LinearOptions options;
  options.steps.activation = Activation::kGeluGate;
  options.gate = gate.data();
  run("gelu_gate", options);
  options = {};
  options.steps = {Activation::kNone, 0.125f, 0.0f, 0.7071067811865476f};
  options.post_norm = post.data();
  options.residual = residual.data();
  for (const int64_t width : {24, 36}) {
    options.post_width = width;
    run("post_norm_" + std::to_string(width), options);
  }
}

void run_linears(const KernelTable& kernels, const Report& report, WeightFormat format, int64_t outputs,
                 int64_t inputs) {
  const std::string prefix = std::string("quant_linear.") + format_name(format) + "." + std::to_string(outputs) + "x" +
                             std::to_string(inputs) + ".";
  Random random(prefix);
  const Matrix matrix(random, format, outputs, inputs);
  const std::vector<float> norm = random.uniform(inputs, 2.0f), bias = random.uniform(outputs, 1.0f);
  const auto run = [&](const std::string& name, int64_t rows, LinearOptions options, float second_block = 1.0f) {
    std::vector<float> x = random.uniform(rows * inputs, 3.0f);
    for (int64_t i = 0; i < kBlock; ++i) x[static_cast<size_t>(i)] = 0.0f;
    for (int64_t i = kBlock; i < 2 * kBlock; ++i) x[static_cast<size_t>(i)] *= second_block;
    Hash hash;
    hash.add(linear(kernels, matrix, x, rows, options, &hash));
    report(prefix + name, hash.value());
  };
  for (int64_t rows = 1; rows <= 8; ++rows) run("rows_" + std::to_string(rows), rows, {});
  run("rows_19", 19, {});
  // Values so small that their scale is no normal number, and its inverse no number at all.
  run("tiny", 3, {}, 0x1p-130f);
  LinearOptions options;
  options.norm_weight = norm.data();
  options.bias = bias.data();
  run("norm_bias", 11, options);
  const std::vector<float> gate = random.uniform(5 * outputs, 6.0f), residual = random.uniform(5 * outputs, 2.0f);
  options = {};
  options.gate = gate.data();
  options.residual = residual.data();
  run("gate_residual", 5, options);
  if (outputs % (2 * kTileRows) == 0) {
    options = {};
    options.paired = true;
    options.bias = bias.data();
    options.residual = residual.data();
    run("swiglu", 5, options);
  }
  run_linear_steps(kernels, report, prefix, matrix);
}

// Blocks that have 16 bits, with what makes them worth it: one number that is much larger than the others.
void run_fine_linears(const KernelTable& kernels, const Report& report, WeightFormat format) {
  constexpr int64_t kOutputs = 64;
  const int64_t inputs = unit_inputs(format) > kBlock ? 768 : 160;
  const std::string prefix = std::string("quant_linear.") + format_name(format) + ".fine.";
  Random random(prefix);
  const Matrix matrix(random, format, kOutputs, inputs);
  Matrices fine{one_part(matrix.packed()), inputs, kOutputs};
  fine.parts.fine = some_fine_blocks(inputs / kBlock, facts(format).unit_blocks);
  const std::vector<float> norm = random.uniform(inputs, 2.0f), bias = random.uniform(kOutputs, 1.0f);
  const auto run = [&](const std::string& name, int64_t rows, const LinearOptions& options, float size = 1.0f) {
    std::vector<float> x = random.uniform(rows * inputs, size);
    for (size_t i = 5; i < x.size(); i += kBlock) x[i] *= 100.0f;
    for (int64_t i = 0; i < kBlock && rows > 1; ++i) x[static_cast<size_t>(i)] = 0.0f;
    Hash hash;
    hash.add(linear(kernels, fine, x, rows, options, &hash));
    report(prefix + name, hash.value());
  };
  for (const int64_t rows : {1, 2, 7, 8, 19, 33}) run("rows_" + std::to_string(rows), rows, {});
  run("tiny", 3, {}, 0x1p-130f);
  run("small", 3, {}, 0x1p-114f);
  LinearOptions options;
  options.norm_weight = norm.data();
  options.bias = bias.data();
  options.paired = true;
  run("norm_swiglu", 11, options);
}

void run_embeds(const KernelTable& kernels, const Report& report, WeightFormat format) {
  const int64_t inputs = unit_inputs(format) > kBlock ? 512 : rounds_activations(format) ? 96 : 70;
  const std::string name = std::string("quant_embed.") + format_name(format);
  Random random(name);
  const Matrix matrix(random, format, 37, inputs);
  const auto run = [&](const std::string& which, float scale) {
    Hash hash;
    for (int64_t row = 0; row < matrix.outputs; ++row) {
      std::vector<float> y(static_cast<size_t>(inputs));
      kernels.quant_embed.row(matrix.packed(), row, inputs, scale, y.data());
      hash.add(y);
    }
    report(which, hash.value());
  };
  run(name, 1.0f);
  run(name + ".scaled", 22.625f);
}

void run_top_k(const KernelTable& kernels, const Report& report, int k) {
  const std::string name = "row_top_k." + std::to_string(k);
  Random random(name);
  const int64_t vocabulary = 2 * kTopKPart + 777;
  std::vector<float> logits = random.uniform(vocabulary, 30.0f);
  // Many equal values, among them the largest ones.
  for (int i = 0; i < 300; ++i) {
    logits[static_cast<size_t>(random.below(static_cast<int>(vocabulary)))] = static_cast<float>(25 + i % 7);
  }
  std::vector<TopKPart> parts;
  for (int64_t begin = 0; begin < vocabulary; begin += kTopKPart) {
    const int64_t end = begin + kTopKPart < vocabulary ? begin + kTopKPart : vocabulary;
    kernels.row_top_k.part(logits.data(), begin, end, k, &parts.emplace_back());
  }
  std::vector<int32_t> ids(static_cast<size_t>(k));
  std::vector<float> values(static_cast<size_t>(k)), log_sum_exp(1);
  kernels.row_top_k.join(parts.data(), static_cast<int64_t>(parts.size()), k, ids.data(), values.data(),
                         log_sum_exp.data());
  Hash hash;
  hash.add(ids);
  hash.add(values);
  hash.add(log_sum_exp);
  report(name, hash.value());
}

// A prompt in passes of several sizes, a tree that is given up, one of whose paths another pass takes up; the outputs
// of all and the cache at the end.
void run_short_conv(const KernelTable& kernels, const Report& report, int64_t channels, int taps, bool has_bias) {
  constexpr int64_t kCapacity = 61;
  const std::string name = "short_conv." + std::to_string(channels) + "x" + std::to_string(taps);
  Random random(name);
  const std::vector<float> weight = random.uniform(taps * channels, 2.0f), bias = random.uniform(channels, 1.0f);
  std::vector<float> cache(static_cast<size_t>(kCapacity * channels));
  std::vector<int32_t> row_map;
  for (int32_t i = 0; i < kCapacity; ++i) row_map.push_back(7 * i % kCapacity);
  Hash hash;
  ConvPass pass{};
  pass.capacity = kCapacity;
  pass.window = taps;
  pass.channels = channels;
  pass.weight = weight.data();
  pass.bias = has_bias ? bias.data() : nullptr;
  pass.cache = cache.data();
  pass.row_map = row_map.data();
  const auto run = [&](const std::vector<int32_t>& parents, int64_t done) {
    pass.rows = static_cast<int64_t>(parents.size()) - done;
    pass.done = done;
    pass.parents = parents.data();
    const std::vector<float> bcx = random.uniform(pass.rows * 3 * channels, 2.0f);
    std::vector<float> y(static_cast<size_t>(pass.rows * channels));
    pass.bcx = bcx.data();
    pass.y = y.data();
    kernels.short_conv.rows(pass, pass.rows / 2, pass.rows);
    kernels.short_conv.rows(pass, 0, pass.rows / 2);
    hash.add(y);
  };
  for (const int64_t rows : {1, 2, 20, 1}) {
    run(chain(rows), 0);
    pass.past += rows;
  }
  run({-1, 0, 0, 1, 1, -1, 5, 3, 7}, 0);
  run({-1, 0, 1, 1, 3, -1}, 3);
  run(chain(5), 0);
  hash.add(cache);
  report(name, hash.value());
}

// A long prompt in one pass, two more rows one by one, then a tree; the outputs of all and the cache at the end.
void run_attention_case(const AttentionRunner& runner, const Report& report, const std::string& name,
                        Attention attention, int64_t prompt) {
  Random random(name);
  const int64_t width = attention.width();
  Hash hash;
  int64_t past = 0;
  const auto pass = [&](const std::vector<int32_t>& parents) {
    const auto rows = static_cast<int64_t>(parents.size());
    hash.add(runner(attention, random.uniform(rows * width, 2.0f), parents, past));
  };
  pass(chain(prompt));
  past = prompt;
  pass(chain(1));
  ++past;
  pass(chain(1));
  ++past;
  pass({-1, 0, 0, 1, 1, -1, 5, 3, 7});
  pass(chain(5));  // the tree is given up: its rows are written again
  hash.add(attention.cache.as<uint8_t>(), attention.cache_bytes());
  report(name, hash.value());
}

Attention awkward(Random& random, int format, int capacity, int64_t window) {
  Attention attention(6, 2, 40, 24, format, capacity);
  attention.window = window;
  attention.softcap = 3.0f;
  attention.interleaved = true;
  attention.q_norm = random.uniform(40, 2.0f);
  attention.k_norm = random.uniform(40, 2.0f);
  attention.sinks = random.uniform(6, 3.0f);
  return attention;
}

// Norms of whole rows, norms behind the rotation, no rotation, and scales of queries.
void run_attention_norms(const AttentionRunner& runner, const Report& report, const std::string& prefix, int format) {
  constexpr int kCapacity = 163, kPrompt = 140;
  Random random(prefix + "norms");
  Attention of_rows(6, 2, 40, 24, format, kCapacity);
  of_rows.q_norm = random.uniform(6 * 40, 2.0f);
  of_rows.k_norm = random.uniform(2 * 40, 2.0f);
  run_attention_case(runner, report, prefix + "norms_of_rows", std::move(of_rows), kPrompt);
  Attention behind(4, 2, 32, 32, format, kCapacity);
  behind.q_norm = random.uniform(32, 2.0f);
  behind.k_norm = random.uniform(32, 2.0f);
  behind.norms_after_rotation = true;
  run_attention_case(runner, report, prefix + "norms_after_rotation", std::move(behind), kPrompt);
  Attention scaled(4, 2, 64, 64, format, kCapacity);
  scaled.query_scale = random.uniform(kCapacity, 2.0f);
  scaled.window = 50;
  run_attention_case(runner, report, prefix + "query_scale", std::move(scaled), kPrompt);
  Attention unrotated(4, 2, 48, 0, format, kCapacity);
  unrotated.query_scale = random.uniform(kCapacity, 2.0f);
  run_attention_case(runner, report, prefix + "unrotated", std::move(unrotated), kPrompt);
}

// Values that are normed, those that are keys before their norm, and a layer that reads what another one has appended.
void run_attention_values(const AttentionRunner& runner, const Report& report, int format) {
  constexpr int kCapacity = 301;
  const std::string prefix = std::string("spec_attention.") + kKvFormats[format].name + ".";
  Random random(prefix + "values");
  Attention normed(4, 2, 40, 40, format, kCapacity);
  normed.k_norm = normed.q_norm = random.uniform(40, 2.0f);
  normed.norms_values = true;
  run_attention_case(runner, report, prefix + "normed_values", normed, 140);
  normed.values_are_keys = true;
  run_attention_case(runner, report, prefix + "values_are_keys", normed, 140);
  Attention shared = normed;
  shared.k_norm.clear();
  shared.norms_values = shared.values_are_keys = false;
  shared.shares_cache = true;
  Hash hash;
  int64_t past = 0;
  // A tree of a few rows, a prompt, rows behind several spans.
  for (const std::vector<int32_t>& parents : {std::vector<int32_t>{-1, 0, 0, 1}, chain(270), chain(3)}) {
    const auto rows = static_cast<int64_t>(parents.size());
    runner(normed, random.uniform(rows * 6 * 40, 2.0f), parents, past);
    std::memcpy(shared.cache.as<uint8_t>(), normed.cache.as<uint8_t>(), normed.cache_bytes());
    hash.add(runner(shared, random.uniform(rows * 4 * 40, 2.0f), parents, past));
    if (std::memcmp(shared.cache.as<uint8_t>(), normed.cache.as<uint8_t>(), normed.cache_bytes()) != 0)
      hash.add(chain(1));
    past += rows == 4 ? 2 : rows;
  }
  report(prefix + "shared", hash.value());
}

// Gates beside a part that is rotated, and limits, of which both are met often.
void run_attention_gates(const AttentionRunner& runner, const Report& report, const std::string& prefix, int format) {
  constexpr int kCapacity = 163, kPrompt = 140;
  Random random(prefix + "gates");
  Attention gated(6, 2, 40, 24, format, kCapacity);
  gated.has_gates = true;
  gated.q_norm = random.uniform(40, 2.0f);
  gated.k_norm = random.uniform(40, 2.0f);
  run_attention_case(runner, report, prefix + "gates", std::move(gated), kPrompt);
  Attention clipped(4, 4, 32, 32, format, kCapacity);
  clipped.clip = 1.25f;
  clipped.q_norm = random.uniform(4 * 32, 2.0f);
  clipped.k_norm = random.uniform(4 * 32, 2.0f);
  run_attention_case(runner, report, prefix + "clip", std::move(clipped), kPrompt);
  Attention both(2, 1, 64, 64, format, kCapacity);
  both.has_gates = true;
  both.clip = 1.0f;
  run_attention_case(runner, report, prefix + "gates_and_clip", std::move(both), kPrompt);
}

void run_attentions(const AttentionRunner& runner, const Report& report, int format) {
  const std::string prefix = std::string("spec_attention.") + kKvFormats[format].name + ".";
  run_attention_case(runner, report, prefix + "plain", Attention(4, 2, 64, 64, format, 192), 140);
  Random random(prefix);
  run_attention_case(runner, report, prefix + "awkward", awkward(random, format, 163, 50), 140);
  // Keys in several spans; a tree over the end of one; windows that begin in the middle of one, and of two.
  run_attention_case(runner, report, prefix + "spans_300", Attention(2, 1, 32, 32, format, 317), 300);
  run_attention_case(runner, report, prefix + "spans_506", Attention(2, 2, 16, 16, format, 523), 506);
  run_attention_case(runner, report, prefix + "spans_600", awkward(random, format, 617, 300), 600);
  run_attention_case(runner, report, prefix + "spans_600_cut", awkward(random, format, 617, 130), 600);
  run_attention_norms(runner, report, prefix, format);
  run_attention_gates(runner, report, prefix, format);
}

void run_key_constants(const AttentionRunner& runner, const Report& report, int format, const Attention& attention) {
  const std::string name =
      std::string("spec_attention.") + kKvFormats[format].name + ".key_constants_" + std::to_string(attention.head_dim);
  Random random(name);
  Attention with_constants = attention;
  with_constants.draw_key_constants(random);
  run_attention_case(runner, report, name, std::move(with_constants), 140);
}

}  // namespace

const char* format_name(WeightFormat format) { return facts(format).name; }

FineBlocks some_fine_blocks(int64_t blocks, int64_t unit_blocks) {
  FineBlocks fine;
  const auto unit = static_cast<int32_t>(unit_blocks), count = static_cast<int32_t>(blocks);
  for (int32_t begin = 0; begin < count && fine.count < kMaxFineRuns; begin += 3 * unit) {
    // One unit, or two that touch.
    const int32_t wanted = begin + (fine.count % 2 + 1) * unit, end = wanted < count ? wanted : count;
    fine.begin[fine.count] = begin;
    fine.end[fine.count++] = end;
    fine.blocks += end - begin;
  }
  return fine;
}

void run_tables(const KernelTable& kernels, const Report& report) {
  for (int i = 0; i < kWeightFormatCount; ++i) {
    const auto format = static_cast<WeightFormat>(i);
    const bool is_wide = unit_inputs(format) > kBlock;
    run_linears(kernels, report, format, 64, is_wide ? 512 : 128);
    run_linears(kernels, report, format, 37, is_wide ? 256 : rounds_activations(format) ? 96 : 70);
    if (rounds_activations(format)) run_fine_linears(kernels, report, format);
    run_embeds(kernels, report, format);
  }
  for (const WeightFormat format : {WeightFormat::kW4, WeightFormat::kF32}) run_linear_groups(kernels, report, format);
  for (int k : {1, 5, kMaxTopK}) run_top_k(kernels, report, k);
  run_short_conv(kernels, report, 64, 3, false);
  run_short_conv(kernels, report, 37, 4, true);
  run_short_conv(kernels, report, 5, kMaxTaps, true);
  run_short_conv(kernels, report, 16, 1, false);
  run_states(kernels, report);
}

void run_drawn_convs(const KernelTable& kernels, uint64_t seed, const Report& report) {
  Random random("drawn_convs." + std::to_string(seed));
  run_short_conv(kernels, report, 1 + random.below(200), 1 + random.below(kMaxTaps), random.below(2) != 0);
}

void run_ops(const KernelTable& kernels, const Report& report) {
  run_tables(kernels, report);
  run_attention_cases([&](Attention& attention, const std::vector<float>& qkv, const std::vector<int32_t>& parents,
                          int64_t past) { return attention.run(kernels, qkv, parents, past); },
                      report);
}

void run_attention_cases(const AttentionRunner& runner, const Report& report) {
  for (int format = 0; format < kKvFormatCount; ++format) run_attentions(runner, report, format);
  for (const int format : {kKvInt4, kKvInt4x2, kKvInt4x2Upper}) {
    run_key_constants(runner, report, format, Attention(4, 2, 64, 64, format, 192));
    run_key_constants(runner, report, format, Attention(3, 1, 22, 10, format, 192));
  }
  for (const int dim : {16, 80, 128, 256}) {
    run_key_constants(runner, report, kKvInt4, Attention(2, 2, dim, dim, kKvInt4, 192));
  }
  for (int format = 0; format < kKvFormatCount; ++format) run_attention_values(runner, report, format);
}

}  // namespace edge_rt::golden
