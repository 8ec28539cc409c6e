#include "ops/quant_embed/quant_embed_gpu_op.h"

#include <utility>

#include "gpu/alignment.h"
#include "ops/quant_embed/quant_embed_gpu.h"

namespace edge_rt::gpu {

abi::Status* GpuQuantEmbed::enqueue(ort::OpContext& context, PassStream& stream) const {
  EmbedRows job;
  if (abi::Status* bad = op_.check(context, &job)) return bad;
  if (job.rows == 0) return nullptr;
  if (abi::Status* bad = check_alignment(context, 1, kEmbedAlignment)) return bad;
  const size_t bytes = sizeof *job.ids * static_cast<size_t>(job.rows);
  ort::Scratch ids;
  if (abi::Status* bad = context.scratch(bytes, &ids)) return bad;
  stream.check_replays(QuantEmbed::kName, [job] { return QuantEmbed::find_bad_id(job); });
  // An error stays in the stream, where whoever runs the kernel finds it.
  if (!stream.upload(ids.data(), job.ids, bytes)) return nullptr;
  job.ids = ids.as<const int64_t>();
  enqueue_embed(&stream, job);
  return nullptr;
}

}  // namespace edge_rt::gpu
