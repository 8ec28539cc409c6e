#include "tests/emulator/emulated_streams.h"

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

CUstream Streams::choose(CUstream waited_for) {
  if (!is_drawn_) return waited_for;
  std::vector<CUstream> ready;
  for (CUstream stream : streams_) {
    if (!stream->queue.empty()) ready.push_back(stream);
  }
  return ready[random_() % ready.size()];
}

CUresult Streams::run_until_empty(CUstream stream) {
  while (!stream->queue.empty()) {
    CUstream next = choose(stream);
    const Item item = std::move(next->queue.front());
    next->queue.pop_front();
    if (const CUresult code = item()) return code;
  }
  return 0;
}

}  // namespace edge_rt::gpu::emulated
