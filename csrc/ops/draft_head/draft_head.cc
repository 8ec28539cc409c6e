#include <algorithm>
#include <cmath>

#include "kernels/kernel_table.h"
#include "ops/draft_head/draft_head_op.h"

namespace edge_rt {
namespace {

constexpr int64_t kMaxHidden = int64_t{1} << 20, kMaxIntermediate = int64_t{1} << 23;

enum Input : int {
  kHidden,
  kToken,
  kEmbedding,
  kFc,
  kStateNorm,
  kTokenNorm,
  kOutputNorm,
  kHead,
  kHeadIds,
  kMoreHead,
  kMoreIds,
  kLimits,
  kBlocks  // three for each
};

long long number(int64_t value) { return static_cast<long long>(value); }

// The place of the first id that `ids` and `others` have both, -1: none. Both ascend; `ids` is the short one.
int64_t find_common(const int32_t* ids, int64_t count, const int32_t* others, int64_t other_count) {
  int64_t from = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t step = 1;
    while (from + step < other_count && others[from + step] < ids[i]) step *= 2;
    const int64_t end = std::min(from + step + 1, other_count);
    from = std::lower_bound(others + from, others + end, ids[i]) - others;
    if (from == other_count) return -1;
    if (others[from] == ids[i]) return i;
  }
  return -1;
}

}  // namespace

abi::Status* DraftHead::create(ort::Attributes& attributes) {
  hidden_ = attributes.integer("hidden");
  intermediate_ = attributes.integer("intermediate");
  nodes_ = attributes.integer("nodes");
  blocks_ = attributes.integer("blocks", 1);
  epsilon_ = attributes.real("epsilon", 1e-5f);
  const int64_t vocabulary = attributes.integer("vocabulary");
  if (hidden_ < 1 || hidden_ > kMaxHidden) {
    return attributes.error("hidden is %lld, must be 1 to %lld", number(hidden_), number(kMaxHidden));
  }
  if (intermediate_ < 1 || intermediate_ > kMaxIntermediate || intermediate_ % kTileRows != 0) {
    return attributes.error("intermediate is %lld, must be a multiple of %d, and at most %lld", number(intermediate_),
                            kTileRows, number(kMaxIntermediate));
  }
  if (nodes_ < 1 || nodes_ > kMaxHeadNodes) {
    return attributes.error("nodes is %lld, must be 1 to %d", number(nodes_), kMaxHeadNodes);
  }
  if (blocks_ < 1 || blocks_ > kMaxHeadBlocks) {
    return attributes.error("blocks is %lld, must be 1 to %d", number(blocks_), kMaxHeadBlocks);
  }
  if (!std::isfinite(epsilon_) || epsilon_ < 0) {
    return attributes.error("epsilon is %g, must be finite and not below 0", static_cast<double>(epsilon_));
  }
  abi::Status* bad = nullptr;
  if ((bad = embedding_.create(attributes, "embedding_", {vocabulary}, hidden_)) != nullptr ||
      (bad = fc_.create(attributes, "fc_", {hidden_}, 2 * hidden_)) != nullptr ||
      (bad = gate_up_.create(attributes, "gate_up_", {intermediate_, intermediate_}, hidden_)) != nullptr ||
      (bad = down_.create(attributes, "down_", {hidden_}, intermediate_)) != nullptr ||
      (bad = head_.create(attributes, "head_", {vocabulary}, hidden_)) != nullptr) {
    return bad;
  }
  isa_ = attributes.isa();
  return nullptr;
}

abi::Status* DraftHead::check_weights(const ort::OpContext& context, DraftHeadJob* job) const {
  job->hidden = hidden_;
  job->intermediate = intermediate_;
  job->epsilon = epsilon_;
  PackedParts embedding;
  abi::Status* bad = nullptr;
  if ((bad = embedding_.view(context, kEmbedding, &embedding)) != nullptr ||
      (bad = fc_.view(context, kFc, &job->fc)) != nullptr ||
      (bad = context.check_shape(kStateNorm, {hidden_})) != nullptr ||
      (bad = context.check_shape(kTokenNorm, {hidden_})) != nullptr ||
      (bad = context.check_shape(kOutputNorm, {hidden_})) != nullptr) {
    return bad;
  }
  job->embedding = embedding.parts[0];
  job->state_norm = context.input(kStateNorm).as<const float>();
  job->token_norm = context.input(kTokenNorm).as<const float>();
  job->output_norm = context.input(kOutputNorm).as<const float>();
  return nullptr;
}

abi::Status* DraftHead::check_blocks(const ort::OpContext& context, DraftHeadJob* job) const {
  job->blocks = static_cast<int>(blocks_);
  for (int i = 0; i < kMaxHeadBlocks; ++i) {
    const int first = kBlocks + 3 * i;
    for (int input = first; input < first + 3; ++input) {
      const bool is_there = context.input(input).present;
      if (is_there == (i < blocks_)) continue;
      return context.error("%s is %s, but blocks is %lld", context.input_name(input), is_there ? "given" : "missing",
                           number(blocks_));
    }
    if (i >= blocks_) continue;
    HeadBlock& block = job->block[i];
    abi::Status* bad = nullptr;
    if ((bad = context.check_shape(first, {hidden_})) != nullptr ||
        (bad = gate_up_.view(context, first + 1, &block.gate_up)) != nullptr ||
        (bad = down_.view(context, first + 2, &block.down)) != nullptr) {
      return bad;
    }
    block.norm = context.input(first).as<const float>();
    block.gate_up.alternate = block.gate_up.count == 2;
  }
  return nullptr;
}

abi::Status* DraftHead::check_ids(const ort::OpContext& context, int index, int64_t count) const {
  const auto* ids = context.input(index).as<const int32_t>();
  bool ascends = true;
  for (int64_t i = 1; i < count; ++i) ascends &= ids[i] > ids[i - 1];
  if (ascends && (count == 0 || (ids[0] >= 0 && ids[count - 1] < embedding_.out_features))) return nullptr;
  int64_t i = 0, least = 0;
  for (; i < count && ids[i] >= least && ids[i] < embedding_.out_features; ++i) least = int64_t{ids[i]} + 1;
  return context.error("%s[%lld] is %d, must be above the one before it, and 0 to %lld", context.input_name(index),
                       number(i), ids[i], number(embedding_.out_features - 1));
}

abi::Status* DraftHead::check_heads(const ort::OpContext& context, DraftHeadJob* job) const {
  const ort::TensorView &ids = context.input(kHeadIds), &more = context.input(kMoreIds);
  if (context.input(kMoreHead).present != more.present) {
    return context.error("more_head and more_ids go together: one is missing");
  }
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(kHeadIds, {-1})) != nullptr ||
      (bad = context.check_shape(kMoreIds, {-1})) != nullptr) {
    return bad;
  }
  job->head_rows = ids.dims[0];
  job->more_rows = more.present ? more.dims[0] : 0;
  if (job->head_rows < 1) return context.error("head_ids is empty");
  PackedParts head, more_head{};
  if ((bad = head_.view_rows(context, kHead, job->head_rows, &head)) != nullptr) return bad;
  if (more.present && (bad = head_.view_rows(context, kMoreHead, job->more_rows, &more_head)) != nullptr) return bad;
  if ((bad = check_ids(context, kHeadIds, job->head_rows)) != nullptr ||
      (bad = check_ids(context, kMoreIds, job->more_rows)) != nullptr) {
    return bad;
  }
  job->head = head.parts[0];
  job->more_head = more_head.parts[0];
  job->head_ids = ids.as<const int32_t>();
  job->more_ids = more.as<const int32_t>();
  const int64_t common = find_common(job->more_ids, job->more_rows, job->head_ids, job->head_rows);
  if (common < 0) return nullptr;
  return context.error("more_ids[%lld] is %d, which is in head_ids, too", number(common), job->more_ids[common]);
}

abi::Status* DraftHead::check_call(const ort::OpContext& context, DraftHeadJob* job) const {
  abi::Status* bad = nullptr;
  if ((bad = context.check_shape(kHidden, {1, hidden_})) != nullptr ||
      (bad = context.check_shape(kToken, {1})) != nullptr || (bad = context.check_shape(kLimits, {3})) != nullptr) {
    return bad;
  }
  job->state = context.input(kHidden).as<const float>();
  for (int64_t i = 0; i < hidden_; ++i) {
    if (!std::isfinite(job->state[i])) return context.error("hidden[%lld] is not finite", number(i));
  }
  job->token = *context.input(kToken).as<const int64_t>();
  if (job->token < 0 || job->token >= embedding_.out_features) {
    return context.error("token is %lld, must be 0 to %lld", number(job->token), number(embedding_.out_features - 1));
  }
  const auto* limits = context.input(kLimits).as<const int32_t>();
  const char* const names[] = {"nodes", "width", "depth"};
  const int64_t most[] = {nodes_, kMaxHeadWidth, kMaxHeadDepth};
  for (int i = 0; i < 3; ++i) {
    if (limits[i] >= 1 && limits[i] <= most[i]) continue;
    return context.error("limits[%d], %s, is %d, must be 1 to %lld", i, names[i], limits[i], number(most[i]));
  }
  job->nodes = limits[0];
  job->width = limits[1];
  job->depth = limits[2];
  return nullptr;
}

abi::Status* DraftHead::compute(ort::OpContext& context) const {
  DraftHeadJob job{};
  abi::Status* bad = nullptr;
  if ((bad = check_weights(context, &job)) != nullptr || (bad = check_blocks(context, &job)) != nullptr ||
      (bad = check_heads(context, &job)) != nullptr || (bad = check_call(context, &job)) != nullptr) {
    return bad;
  }
  ort::TensorView ids, parents, depths, log_probs, count;
  if ((bad = context.output(0, {nodes_}, &ids)) != nullptr ||
      (bad = context.output(1, {nodes_}, &parents)) != nullptr ||
      (bad = context.output(2, {nodes_}, &depths)) != nullptr ||
      (bad = context.output(3, {nodes_}, &log_probs)) != nullptr || (bad = context.output(4, {1}, &count)) != nullptr) {
    return bad;
  }
  ort::Scratch scratch;
  if ((bad = context.scratch(draft_head_scratch_bytes(job), &scratch)) != nullptr) return bad;
  const KernelTable& kernels = kernel_table(isa_);
  DraftHeadRun run{kernels.quant_linear,
                   kernels.quant_embed,
                   kernels.row_top_k,
                   kernels.draft_head,
                   process_crew(),
                   lanes_.load(std::memory_order_relaxed),
                   1};
  DraftTree tree{ids.as<int32_t>(), parents.as<int32_t>(), depths.as<int32_t>(), log_probs.as<float>(), 0};
  if (!run_draft_head(run, job, scratch.data(), &tree)) {
    return context.error("Failed to allocate memory for rounded rows");
  }
  lanes_.store(run.workers, std::memory_order_relaxed);
  const int64_t rest = nodes_ - tree.count;
  std::fill_n(tree.ids + tree.count, rest, -1);
  std::fill_n(tree.parents + tree.count, rest, -1);
  std::fill_n(tree.depths + tree.count, rest, 0);
  std::fill_n(tree.log_probs + tree.count, rest, 0.0f);
  *count.as<int32_t>() = tree.count;
  return nullptr;
}

}  // namespace edge_rt
