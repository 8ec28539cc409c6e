// Runs of single ops by their kernels alone, without ONNX Runtime and in one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "tests/golden_inputs.h"
#include "tests/golden_node.h"

namespace edge_rt::golden {

// Called with the name of each case and the hash of its output bits.
using Report = std::function<void(const std::string& name, uint64_t hash)>;

constexpr float kLinearEpsilon = 1e-5f;
constexpr float kAttentionScale = 0.125f;

// Names of our own: those of the library belong to its face to ONNX Runtime.
const char* format_name(WeightFormat format);

// What QuantLinear may be given besides x and its weights.
struct LinearOptions {
  const float* norm_weight = nullptr;
  const float* bias = nullptr;
  const float* residual = nullptr;
  const float* gate = nullptr;
  bool paired = false;
  LinearSteps steps = {Activation::kSwiglu};
  const float* post_norm = nullptr;
  bool is_layer_norm = false;
  const float* norm_bias = nullptr;
  int64_t post_width = 0;  // of groups that post_norm norms; 0: whole rows
};

// y of x [rows, matrix.inputs]; what the activations became is added to the hash.
std::vector<float> linear(const KernelTable& kernels, const Matrix& matrix, const std::vector<float>& x, int64_t rows,
                          const LinearOptions& options, Hash* hash = nullptr);

// Matrices that are read as one.
struct Matrices {
  PackedParts parts;
  int64_t inputs, outputs;  // outputs of all together
};
std::vector<float> linear(const KernelTable& kernels, const Matrices& matrices, const std::vector<float>& x,
                          int64_t rows, const LinearOptions& options, Hash* hash = nullptr);

// Every third stretch of units, as far as there are any, or the last one.
FineBlocks some_fine_blocks(int64_t blocks, int64_t unit_blocks);

// One SpecAttention node: its attributes and its part of the cache.
struct Attention {
  int heads, kv_heads, head_dim, rotary;
  int format;
  int64_t window = 0;
  float softcap = 0.0f, epsilon = 1e-6f, clip = 0.0f;
  bool interleaved = false, has_gates = false;
  bool norms_after_rotation = false, rotates = true;
  bool shares_cache = false, norms_values = false, values_are_keys = false;
  std::vector<float> q_norm, k_norm, sinks, query_scale;  // empty: none
  std::vector<float> key_centre, key_balance, key_feedback;
  std::vector<float> cos, sin;   // [positions][rotary / 2]
  std::vector<int32_t> row_map;  // its length is the capacity
  Memory cache;

  // Zeroed cache; positions on a circle, by rational numbers in place of sines; row 5 i mod capacity for position i.
  Attention(int head_count, int kv_head_count, int dim, int rotary_dim, int kv_format, int capacity);
  size_t cache_bytes() const;
  int64_t width() const;  // of a row of qkv that has keys and values
  // Makes up constants of keys.
  void draw_key_constants(Random& random);

  // A pass of as many rows as there are parents, without qkv, y and scratch memory.
  AttentionPass pass(const std::vector<int32_t>& parents, const std::vector<int32_t>& depths, int64_t past);
  // Appends the rows and returns y; parents as in the op.
  std::vector<float> run(const KernelTable& kernels, const std::vector<float>& qkv, const std::vector<int32_t>& parents,
                         int64_t past);
};

std::vector<int32_t> chain(int64_t rows);
std::vector<int32_t> depths_of(const std::vector<int32_t>& parents);
// Runs a pass that lacks scratch memory alone.
void run_attention(const KernelTable& kernels, AttentionPass pass);

// How a case of attention runs a pass: the CPU's kernels, or what is to have their bits.
using AttentionRunner = std::function<std::vector<float>(Attention& attention, const std::vector<float>& qkv,
                                                         const std::vector<int32_t>& parents, int64_t past)>;
void run_attention_cases(const AttentionRunner& runner, const Report& report);

// All cases of the ops that GPUs have as well, but attention.
void run_tables(const KernelTable& kernels, const Report& report);
// All cases of all ops.
void run_ops(const KernelTable& kernels, const Report& report);

// Ops with states, GatedDelta and SsmScan.
void run_states(const KernelTable& kernels, const Report& report);

// One of each of ShortConv, StateConv, GatedDelta and SsmScan in a shape that is drawn; and one of Experts, of which
// some routers give scores that are no numbers. A number that is none is hashed as one and the same.
void run_drawn_convs(const KernelTable& kernels, uint64_t seed, const Report& report);
void run_drawn_states(const KernelTable& kernels, uint64_t seed, const Report& report);
void run_drawn_experts(const NodeRunner& run, uint64_t seed, const Report& report);

// Trees of a draft head.
void run_heads(const Report& report);

// Experts, by the library's node or by what is to have its bits.
void run_experts(const Report& report);
void run_experts(const NodeRunner& run, const Report& report);

// Whole layers, plain and as a tree; false if a tree's path has other bits than the same tokens one after the other, or
// the op of a whole layer has others than its parts.
bool run_layers(const KernelTable& kernels, const Report& report);

}  // namespace edge_rt::golden
