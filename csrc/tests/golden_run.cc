#include <algorithm>

#include "common/crew.h"
#include "ops/spec_attention/spec_attention_run.h"
#include "tests/golden_ops.h"

namespace edge_rt::golden {

std::vector<float> linear(const KernelTable& kernels, const Matrix& matrix, const std::vector<float>& x, int64_t rows,
                          const LinearOptions& options, Hash* hash) {
  return linear(kernels, {one_part(matrix.packed()), matrix.inputs, matrix.outputs}, x, rows, options, hash);
}

std::vector<float> linear(const KernelTable& kernels, const Matrices& matrices, const std::vector<float>& x,
                          int64_t rows, const LinearOptions& options, Hash* hash) {
  const QuantLinearKernels& quant_linear = kernels.quant_linear;
  const PackedParts& parts = matrices.parts;
  const int64_t blocks = parts.row_blocks();
  const size_t code_bytes = static_cast<size_t>(rows * blocks * kBlock * (parts.rounds() ? 1 : 4));
  const size_t numbers = static_cast<size_t>(rows * blocks);
  const size_t words = numbers * static_cast<size_t>(parts.kinds.words());
  Memory codes(code_bytes), scale(numbers * sizeof(float)), sums(words * sizeof(uint32_t));
  Activations in{rows, blocks, codes.as<int8_t>(), scale.as<float>(), {}};
  auto* next = sums.as<uint32_t>();
  for (int i = 0; i < parts.kinds.count; ++i) {
    in.sums[i] = next;
    next += numbers * static_cast<size_t>(parts.kinds.kinds[i].groups);
  }
  const RoundRows rounding{
      x.data(), matrices.inputs,       options.norm_weight, kLinearEpsilon, parts.rounds(), parts.kinds,
      in,       options.is_layer_norm, options.norm_bias,   parts.fine};
  for (int64_t group = 0; group < rounding.out.groups(); ++group) {
    quant_linear.round_group(rounding, group, 0, rounding.blocks());
  }
  if (hash != nullptr) {
    hash->add(in.codes, code_bytes);
    hash->add(in.scale, numbers * sizeof(float));
    for (int i = 0; i < parts.kinds.count; ++i) {
      // Of sums that begin with the bits of a float, what is left without these.
      const SumKind& kind = parts.kinds.kinds[i];
      const uint32_t begin = kind.scaled || kind.times <= 1 ? 0 : kMagicBits;
      std::vector<uint32_t> bare(in.sums[i], in.sums[i] + numbers * static_cast<size_t>(kind.groups));
      for (uint32_t& word : bare) word -= begin;
      hash->add(bare.data(), bare.size() * sizeof(uint32_t));
    }
  }

  LinearRows job{};
  job.weight = parts;
  job.in = in;
  job.out_features = matrices.outputs;
  job.width = options.paired ? matrices.outputs / 2 : matrices.outputs;
  job.paired = options.paired;
  job.bias = options.bias;
  job.gate = options.gate;
  job.residual = options.residual;
  job.steps = options.steps;
  job.post_norm = options.post_norm;
  job.post_width = options.post_width > 0 ? options.post_width : job.width;
  job.post_epsilon = kLinearEpsilon;
  std::vector<float> y(static_cast<size_t>(rows * job.width));
  job.y = y.data();
  Memory unpacked(unpacked_bytes(job));
  if (parts.rounds()) job.unpacked = unpacked.as<uint8_t>();
  // In two ranges, as two threads would.
  const int64_t tiles = parts.tiles(), middle = tiles / 4 * 2;
  quant_linear.tiles(job, 0, middle, middle);
  quant_linear.tiles(job, middle, tiles, tiles);
  if (job.post_norm != nullptr) quant_linear.post_norm(job, 0, rows);
  return y;
}

Attention::Attention(int head_count, int kv_head_count, int dim, int rotary_dim, int kv_format, int capacity)
    : heads(head_count), kv_heads(kv_head_count), head_dim(dim), rotary(rotary_dim), format(kv_format),
      row_map(static_cast<size_t>(capacity)),
      cache(static_cast<size_t>(2 * kv_head_count * capacity * kv_row_bytes(kKvFormats[kv_format], dim))) {
  for (int i = 0; i < capacity; ++i) row_map[static_cast<size_t>(i)] = 5 * i % capacity;
  for (int position = 0; position < capacity; ++position) {
    for (int i = 0; i < rotary / 2; ++i) {
      // The tangent of half the angle; any will do, as long as cos and sin belong together.
      const float t = static_cast<float>((position * (2 * i + 1)) % 97 - 48) / 32.0f;
      cos.push_back((1.0f - t * t) / (1.0f + t * t));
      sin.push_back(2.0f * t / (1.0f + t * t));
    }
  }
}

size_t Attention::cache_bytes() const {
  const size_t capacity = row_map.size();
  return static_cast<size_t>(2 * kv_heads * kv_row_bytes(kKvFormats[format], head_dim)) * capacity;
}

void Attention::draw_key_constants(Random& random) {
  key_centre = random.uniform(kv_heads * head_dim, 1.0f);
  key_balance = random.uniform(kv_heads * head_dim, 1.0f);
  for (float& value : key_balance) value = 1.25f + 0.75f * value;
  key_feedback = random.uniform(int64_t{kv_heads} * head_dim * head_dim, 0.25f);
  for (size_t i = 0; i < key_feedback.size(); ++i) {
    const size_t row = i / static_cast<size_t>(head_dim) % static_cast<size_t>(head_dim);
    if (i % static_cast<size_t>(head_dim) <= row) key_feedback[i] = 0.0f;
  }
}

AttentionPass Attention::pass(const std::vector<int32_t>& parents, const std::vector<int32_t>& depths, int64_t past) {
  const auto pointer = [](const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); };
  AttentionPass pass{};
  pass.heads = heads;
  pass.kv_heads = kv_heads;
  pass.group = heads / kv_heads;
  pass.head_dim = head_dim;
  pass.padded_dim = (head_dim + 15) / 16 * 16;
  pass.half_rotary = rotates ? rotary / 2 : 0;
  pass.scale = kAttentionScale;
  pass.softcap = softcap;
  pass.clip = clip;
  pass.has_gates = has_gates;
  pass.epsilon = epsilon;
  pass.window = window;
  pass.interleaved = interleaved;
  pass.format = format;
  pass.rows = static_cast<int64_t>(parents.size());
  pass.past = past;
  pass.capacity = static_cast<int64_t>(row_map.size());
  pass.chain = parents == chain(pass.rows);
  pass.cos = cos.data();
  pass.sin = sin.data();
  pass.q_norm = pointer(q_norm);
  pass.k_norm = pointer(k_norm);
  pass.sinks = pointer(sinks);
  pass.query_scale = pointer(query_scale);
  pass.norms_after_rotation = norms_after_rotation;
  pass.shares_cache = shares_cache;
  pass.norms_values = norms_values;
  pass.values_are_keys = values_are_keys;
  pass.q_norm_of_row = q_norm.size() > static_cast<size_t>(head_dim);
  pass.k_norm_of_row = k_norm.size() > static_cast<size_t>(head_dim);
  pass.key_centre = pointer(key_centre);
  pass.key_balance = pointer(key_balance);
  pass.key_feedback = pointer(key_feedback);
  pass.cache = cache.as<uint8_t>();
  pass.lay_planes();
  pass.row_map = row_map.data();
  pass.parents = parents.data();
  pass.depths = depths.data();
  return pass;
}

int64_t Attention::width() const { return int64_t{head_dim} * ((has_gates ? 2 : 1) * heads + 2 * kv_heads); }

std::vector<float> Attention::run(const KernelTable& kernels, const std::vector<float>& qkv,
                                  const std::vector<int32_t>& parents, int64_t past) {
  const std::vector<int32_t> depths = depths_of(parents);
  AttentionPass pass = this->pass(parents, depths, past);
  std::vector<float> y(static_cast<size_t>(pass.rows * heads * head_dim));
  pass.qkv = qkv.data();
  pass.y = y.data();
  run_attention(kernels, pass);
  return y;
}

void run_attention(const KernelTable& kernels, AttentionPass pass) {
  AttentionPlans plans(&pass, 1);
  Memory scratch(plans.scratch_bytes());
  PhaseList phases;
  plans.add_phases(scratch.as<void>(), kernels.spec_attention, &phases);
  Crew crew(1);
  run_phases(crew, phases);
}

std::vector<int32_t> depths_of(const std::vector<int32_t>& parents) {
  std::vector<int32_t> depths;
  for (int32_t parent : parents) depths.push_back(parent < 0 ? 0 : depths[static_cast<size_t>(parent)] + 1);
  return depths;
}

std::vector<int32_t> chain(int64_t rows) {
  std::vector<int32_t> parents;
  for (int64_t i = 0; i < rows; ++i) parents.push_back(static_cast<int32_t>(i - 1));
  return parents;
}

}  // namespace edge_rt::golden
