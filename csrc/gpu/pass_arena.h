// Device memory of passes, for sessions whose passes run one after the other: the graphs of a model. It is one block of
// the driver's, as large as was planned, and every pass divides it anew. Recorded passes do so, too: nothing in it
// outlives the pass that wrote it, but for results that somebody still holds.
//
// A pass that needs more than there is gets blocks of its own. Before the next pass all of them become one, and what
// was recorded is void. Where the device refuses that one, there are several.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>

#include "gpu/gpu_device.h"

namespace edge_rt::gpu {

class PassArena {
 public:
  // `planned`: bytes of its first block; 0: nobody knows.
  PassArena(std::shared_ptr<GpuDevice> device, size_t planned) : device_(std::move(device)), next_(planned) {}
  ~PassArena();
  PassArena(const PassArena&) = delete;
  PassArena& operator=(const PassArena&) = delete;

  // That of a number, which sessions share while one of them is open.
  static std::shared_ptr<PassArena> of(int number, const std::shared_ptr<GpuDevice>& device, size_t planned);

  // Begins at a multiple of 256; nullptr: there is no memory.
  void* allocate(size_t bytes);
  // False: it is not of this arena.
  bool free(void* memory);
  // Makes one block of several where nothing of them is held; kernels that were started must be done.
  void join();
  // What was recorded is void once this is another number.
  int generation() const;
  // What it has from the driver.
  size_t bytes() const;

 private:
  struct Block {
    char* begin;
    size_t bytes;
    std::map<size_t, size_t> idle;  // where, and how many bytes
  };
  struct Piece {
    Block* block;
    size_t bytes;
  };

  void* take(Block* block, std::map<size_t, size_t>::iterator range, size_t bytes);
  Block* add_block(size_t bytes);

  const std::shared_ptr<GpuDevice> device_;
  mutable std::mutex lock_;
  std::list<Block> blocks_;
  std::map<void*, Piece> used_;
  size_t next_;                  // bytes of the first block
  size_t refused_ = ~size_t{0};  // of a block that the device has not given: none is asked for that is as large
  int generation_ = 0;
};

}  // namespace edge_rt::gpu
