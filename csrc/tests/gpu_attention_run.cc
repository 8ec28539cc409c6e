#include "tests/gpu_attention_run.h"

#include "ops/spec_attention/spec_attention_gpu.h"
#include "tests/check.h"

namespace edge_rt::golden {
namespace {

AttentionPass pass_behind(Attention& attention, const std::vector<int32_t>& parents, const std::vector<int32_t>& depths,
                          int64_t past, int64_t done) {
  AttentionPass pass = attention.pass(parents, depths, past);
  pass.done = done;
  pass.rows -= done;
  pass.depths += done;
  return pass;
}

std::vector<float> make_y(const AttentionPass& pass) {
  return std::vector<float>(static_cast<size_t>(pass.rows * pass.heads * pass.head_dim));
}

}  // namespace

std::vector<float> run_on_gpu(gpu::Launcher* launcher, Attention& attention, const float* qkv,
                              const std::vector<int32_t>& parents, int64_t past, int64_t done) {
  AttentionPass pass = pass_behind(attention, parents, parents, past, done);
  const std::vector<int32_t> device_past(1, static_cast<int32_t>(past));
  std::vector<float> y = make_y(pass);
  pass.qkv = qkv;
  pass.y = y.data();
  // What kernels must not look at.
  pass.past = -1;
  pass.depths = nullptr;
  pass.chain = !pass.chain;
  std::vector<uint8_t> tree(gpu::attention_tree_bytes(pass.done + pass.rows), 0xAA);
  std::vector<uint8_t> scratch(gpu::attention_scratch_bytes(pass), 0xAA);
  CHECK(gpu::enqueue_attention_tree(launcher, parents.data(), pass.done + pass.rows, tree.data()));
  CHECK(gpu::enqueue_attention(launcher, pass, device_past.data(), tree.data(), scratch.data()));
  return y;
}

std::vector<float> run_on_cpu(const KernelTable& kernels, Attention& attention, const std::vector<float>& qkv,
                              const std::vector<int32_t>& parents, int64_t past, int64_t done) {
  const std::vector<int32_t> depths = depths_of(parents);
  AttentionPass pass = pass_behind(attention, parents, depths, past, done);
  std::vector<float> y = make_y(pass);
  pass.qkv = qkv.data();
  pass.y = y.data();
  run_attention(kernels, pass);
  return y;
}

}  // namespace edge_rt::golden
