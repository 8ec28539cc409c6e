#include "gpu/emulated_streams.h"

#include <utility>

namespace edge_rt::gpu::emulated {

CUstream Streams::make() {
  CUstream stream = new CUstream_st;
  streams_.insert(stream);
  return stream;
}

void Streams::destroy(CUstream stream) {
  streams_.erase(stream);
  delete stream;
}

void Streams::add(CUstream stream, Item item) {
  if (stream->capture != nullptr) {
    stream->capture->items.push_back(std::move(item));
  } else {
    stream->queue.push_back(std::move(item));
  }
}

CUstream Streams::choose(CUstream first) {
  const auto is_ready = [](CUstream stream) { return !stream->queue.empty() && stream->queue.front().can_run(); };
  if (!is_drawn_ && first != nullptr && is_ready(first)) return first;
  std::vector<CUstream> ready;
  for (CUstream stream : streams_) {
    if (is_ready(stream)) ready.push_back(stream);
  }
  if (ready.empty()) return nullptr;
  return ready[is_drawn_ ? random_() % ready.size() : 0];
}

CUresult Streams::run(CUstream first, const std::function<bool()>& is_done) {
  while (!is_done()) {
    CUstream stream = choose(first);
    if (stream == nullptr) return kInvalidValue;  // all wait for each other
    const Item item = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (item.run == nullptr) continue;
    if (const CUresult code = item.run()) return code;
  }
  return 0;
}

}  // namespace edge_rt::gpu::emulated
