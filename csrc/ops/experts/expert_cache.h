// Experts that are read when they are wanted: a cache of fixed bytes over a file of weights.
//
// A cache stands for addresses: those at which the file would be mapped. Whoever is given matrices there asks for the
// cache of their address, holds what a call uses, and reads copies in the cache; nothing is read at the addresses
// themselves. So no page fault happens inside a kernel, and the memory of the cache is all that it ever takes.
//
// Memory is cut into pools, of slots of one size each; the expert of a pool that was not used for the longest time
// goes. Two threads read, whole matrices at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace edge_rt {

// Reads up to `bytes` at `offset` of a file; returns how many, 0 behind its end, or the negative number of an error.
using ReadAt = int64_t (*)(void* user, void* to, int64_t bytes, int64_t offset);

struct ExpertCacheCounts {
  int64_t hits = 0, misses = 0;  // of experts that calls held
  int64_t bytes = 0;             // that were read
  int64_t waited_us = 0;         // calls waited for reads
  int64_t reading_us = 0;        // of all reads, those at the same time each
  int64_t failures = 0;
};

class ExpertCache {
 public:
  static constexpr int kMaxPieces = 4;
  static constexpr int64_t kPage = 4096;  // reads begin and end at multiples of it

  struct Piece {
    const uint8_t* address;
    int64_t bytes;
  };
  // The matrices of an expert.
  struct Wanted {
    Piece pieces[kMaxPieces];
    int count = 0;

    // Of a slot that has room for it wherever its matrices begin.
    int64_t slot_bytes() const;
  };
  struct Pool {
    int64_t slot_bytes, slots;
  };

  // `base` and `bytes`: the addresses. Nothing was opened where `problem` says why afterwards.
  ExpertCache(const uint8_t* base, int64_t bytes, const std::vector<Pool>& pools, ReadAt read, void* user);
  // No call may be under way.
  ~ExpertCache();
  ExpertCache(const ExpertCache&) = delete;
  ExpertCache& operator=(const ExpertCache&) = delete;

  bool is_open() const { return !readers_.empty(); }
  bool has(const void* address) const { return address >= base_ && address < base_ + bytes_; }
  // Calls that wait give up, and so do those to come, until it is taken back.
  void stop(bool is_stopped);
  ExpertCacheCounts counts();

 private:
  friend class ExpertCall;

  struct Slot {
    const uint8_t* key = nullptr;
    uint8_t* memory = nullptr;
    uint64_t used = 0;
    int pending = 0;  // pieces that are still read
    int error = 0;    // of the system; or kShort, kStopped
    bool is_held = false;
  };
  struct Slots {
    int64_t bytes = 0;
    std::vector<Slot> all;
    std::unordered_map<const uint8_t*, Slot*> by_key;
  };
  struct Job {
    Slot* slot;
    uint8_t* to;
    int64_t begin, end, wanted;  // bytes of the file; what has to be there ends at `wanted`
  };
  static constexpr int kShort = -1, kStopped = -2;

  void help();
  int read(const Job& job);
  Slots* pool_of(const Wanted& wanted);

  const uint8_t* base_;
  int64_t bytes_;
  ReadAt read_;
  void* user_;
  uint8_t* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  std::vector<Slots> pools_;
  std::mutex call_;   // of the call under way
  std::mutex mutex_;  // of everything below
  std::condition_variable work_, done_;
  std::deque<Job> jobs_;
  ExpertCacheCounts counts_;
  uint64_t clock_ = 0;
  bool is_stopped_ = false, is_closing_ = false;
  std::vector<std::thread> readers_;
};

// What a call holds; it has the cache for itself.
class ExpertCall {
 public:
  explicit ExpertCall(std::shared_ptr<ExpertCache> cache);
  ~ExpertCall();
  ExpertCall(const ExpertCall&) = delete;
  ExpertCall& operator=(const ExpertCall&) = delete;

  // How many experts of this size can be held at once; 0: none can be.
  int64_t room(const ExpertCache::Wanted& wanted);
  // Holds an expert, whose reading begins if it is not there; returns its slot. No more than `room` may be held.
  // Null where the call was stopped before there was a slot.
  void* hold(const ExpertCache::Wanted& wanted, bool* is_there);
  // Waits until an expert is there. Returns false where it cannot be, and why in `problem`.
  bool wait(void* slot);
  void release(void* slot);
  // Where a piece of a held expert lies.
  const uint8_t* place(const ExpertCache::Wanted& wanted, int piece, void* slot) const;
  const std::string& problem() const { return problem_; }

 private:
  std::shared_ptr<ExpertCache> cache_;
  std::unique_lock<std::mutex> call_;
  std::string problem_;
};

// The cache that stands for an address, or nullptr.
std::shared_ptr<ExpertCache> expert_cache_of(const void* address);

}  // namespace edge_rt
