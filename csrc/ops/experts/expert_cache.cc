#include "ops/experts/expert_cache.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "common/export.h"

#ifndef _WIN32
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace edge_rt {
namespace {

constexpr int kReaders = 2;  // more were not faster on flash memory
// edge_rt/ort/errors.py knows it.
constexpr char kStoppedText[] = "the pass was stopped while experts were read";

int64_t page_up(int64_t bytes) { return (bytes + ExpertCache::kPage - 1) / ExpertCache::kPage * ExpertCache::kPage; }

int64_t now_us() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(since).count();
}

void* reserve(size_t bytes) {
#ifdef _WIN32
  (void)bytes;
  return nullptr;
#else
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
#endif
}

// Caches by what they stand for. An operator knows an address alone, so this is a table of the process; who opened a
// cache takes it out again.
struct Table {
  std::mutex mutex;
  std::vector<std::shared_ptr<ExpertCache>> caches;
};

Table& table() {
  static auto* const made = new Table;
  return *made;
}

}  // namespace

int64_t ExpertCache::Wanted::slot_bytes() const {
  int64_t all = 0;
  for (int i = 0; i < count; ++i) all += page_up(pieces[i].bytes) + kPage;
  return all;
}

ExpertCache::ExpertCache(const uint8_t* base, int64_t bytes, const std::vector<Pool>& pools, ReadAt read, void* user)
    : base_(base), bytes_(bytes), read_(read), user_(user) {
  for (const Pool& pool : pools) {
    if (pool.slots < 1 || pool.slot_bytes < kPage || pool.slot_bytes % kPage != 0) return;
    memory_bytes_ += static_cast<size_t>(pool.slots) * static_cast<size_t>(pool.slot_bytes);
  }
  if (memory_bytes_ == 0) return;
  readers_.reserve(kReaders);
  memory_ = static_cast<uint8_t*>(reserve(memory_bytes_));
  if (memory_ == nullptr) return;
  uint8_t* at = memory_;
  for (const Pool& pool : pools) {
    Slots& slots = pools_.emplace_back();
    slots.bytes = pool.slot_bytes;
    slots.all.resize(static_cast<size_t>(pool.slots));
    for (Slot& slot : slots.all) {
      slot.memory = at;
      at += pool.slot_bytes;
    }
  }
  std::sort(pools_.begin(), pools_.end(), [](const Slots& a, const Slots& b) { return a.bytes < b.bytes; });
  try {
    for (int i = 0; i < kReaders; ++i) readers_.emplace_back([this] { help(); });
  } catch (const std::system_error&) {
    // Where the system gives one thread alone, that one reads; without any, nothing was opened.
  }
}

ExpertCache::~ExpertCache() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  work_.notify_all();
  for (std::thread& reader : readers_) reader.join();
#ifndef _WIN32
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
#endif
}

void ExpertCache::stop(bool is_stopped) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopped_ = is_stopped;
  }
  done_.notify_all();
}

ExpertCacheCounts ExpertCache::counts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

ExpertCache::Slots* ExpertCache::pool_of(const Wanted& wanted) {
  for (Slots& pool : pools_) {
    if (pool.bytes >= wanted.slot_bytes()) return &pool;
  }
  return nullptr;
}

void ExpertCache::help() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return is_closing_ || !jobs_.empty(); });
    if (is_closing_) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    int error = kStopped;
    if (!is_stopped_) {
      lock.unlock();
      const int64_t begin = now_us();
      error = read(job);
      const int64_t took = now_us() - begin;
      lock.lock();
      counts_.reading_us += took;
      if (error == 0) counts_.bytes += job.end - job.begin;
      if (error != 0) ++counts_.failures;
    }
    Slot& slot = *job.slot;
    if (error != 0 && slot.error == 0) slot.error = error;
    if (--slot.pending == 0) done_.notify_all();
  }
}

// Returns 0 or what went wrong.
int ExpertCache::read(const Job& job) {
  for (int64_t at = job.begin; at < job.wanted;) {
    const int64_t got = read_(user_, job.to + (at - job.begin), job.end - at, at);
    if (got == -EINTR) continue;
    if (got < 0) return static_cast<int>(-got);
    if (got == 0) return kShort;
    if (at + got >= job.wanted) return 0;
    // Behind a short read only whole pages may be asked for: what was read of the last one is read again.
    const int64_t next = (at + got) / kPage * kPage;
    if (next == at) return kShort;
    at = next;
  }
  return 0;
}

ExpertCall::ExpertCall(std::shared_ptr<ExpertCache> cache) : cache_(std::move(cache)), call_(cache_->call_) {}

ExpertCall::~ExpertCall() {
  const std::lock_guard<std::mutex> lock(cache_->mutex_);
  for (ExpertCache::Slots& pool : cache_->pools_) {
    for (ExpertCache::Slot& slot : pool.all) slot.is_held = false;
  }
}

int64_t ExpertCall::room(const ExpertCache::Wanted& wanted) {
  const ExpertCache::Slots* const pool = cache_->pool_of(wanted);
  return pool == nullptr ? 0 : static_cast<int64_t>(pool->all.size());
}

void* ExpertCall::hold(const ExpertCache::Wanted& wanted, bool* is_there) {
  using Slot = ExpertCache::Slot;
  ExpertCache::Slots& pool = *cache_->pool_of(wanted);
  const uint8_t* const key = wanted.pieces[0].address;
  std::unique_lock<std::mutex> lock(cache_->mutex_);
  if (const auto found = pool.by_key.find(key); found != pool.by_key.end()) {
    Slot& slot = *found->second;
    // Of one whose reading was stopped half-way the rest is not there: it is read anew, into another slot.
    if (slot.error == 0) {
      slot.is_held = true;
      slot.used = ++cache_->clock_;
      *is_there = slot.pending == 0;
      ++cache_->counts_.hits;
      return &slot;
    }
  }
  const auto free_slot = [&]() -> Slot* {
    Slot* best = nullptr;
    for (Slot& slot : pool.all) {
      if (slot.is_held || slot.pending > 0) continue;
      if (slot.key == nullptr || slot.error != 0) return &slot;
      if (best == nullptr || slot.used < best->used) best = &slot;
    }
    return best;
  };
  Slot* slot = nullptr;
  // Reads that a stopped call has left behind come to an end, when the disk likes.
  cache_->done_.wait(lock, [&] { return (slot = free_slot()) != nullptr || cache_->is_stopped_; });
  *is_there = false;
  if (slot == nullptr) return nullptr;
  if (slot->key != nullptr) {
    // An expert that could not be read may have been read again elsewhere.
    if (const auto old = pool.by_key.find(slot->key); old != pool.by_key.end() && old->second == slot) {
      pool.by_key.erase(old);
    }
  }
  pool.by_key[key] = slot;
  slot->key = key;
  slot->error = 0;
  slot->is_held = true;
  slot->used = ++cache_->clock_;
  slot->pending = wanted.count;
  ++cache_->counts_.misses;
  uint8_t* to = slot->memory;
  for (int i = 0; i < wanted.count; ++i) {
    const ExpertCache::Piece& piece = wanted.pieces[i];
    const int64_t offset = piece.address - cache_->base_, end = offset + piece.bytes;
    const int64_t begin = offset / ExpertCache::kPage * ExpertCache::kPage;
    cache_->jobs_.push_back({slot, to, begin, page_up(end), end});
    to += page_up(piece.bytes) + ExpertCache::kPage;
  }
  lock.unlock();
  cache_->work_.notify_all();
  return slot;
}

bool ExpertCall::wait(void* of) {
  if (of == nullptr) {
    problem_ = kStoppedText;
    return false;
  }
  auto& slot = *static_cast<ExpertCache::Slot*>(of);
  std::unique_lock<std::mutex> lock(cache_->mutex_);
  if (slot.pending > 0) {
    const int64_t begin = now_us();
    cache_->done_.wait(lock, [&] { return slot.pending == 0 || cache_->is_stopped_; });
    cache_->counts_.waited_us += now_us() - begin;
  }
  if (slot.pending > 0 || slot.error == ExpertCache::kStopped) {
    problem_ = kStoppedText;
    return false;
  }
  if (slot.error == 0) return true;
  const std::string at = " at byte " + std::to_string(slot.key - cache_->base_);
  problem_ = slot.error == ExpertCache::kShort
                 ? "the file of weights ends before an expert" + at
                 : "an expert" + at + " cannot be read: SystemError : " + std::to_string(slot.error);
  return false;
}

void ExpertCall::release(void* of) {
  if (of == nullptr) return;
  const std::lock_guard<std::mutex> lock(cache_->mutex_);
  static_cast<ExpertCache::Slot*>(of)->is_held = false;
}

const uint8_t* ExpertCall::place(const ExpertCache::Wanted& wanted, int piece, void* of) const {
  const uint8_t* at = static_cast<ExpertCache::Slot*>(of)->memory;
  for (int i = 0; i < piece; ++i) at += page_up(wanted.pieces[i].bytes) + ExpertCache::kPage;
  return at + (wanted.pieces[piece].address - cache_->base_) % ExpertCache::kPage;
}

std::shared_ptr<ExpertCache> expert_cache_of(const void* address) {
  Table& all = table();
  const std::lock_guard<std::mutex> lock(all.mutex);
  // The newest first: addresses of a mapping that is gone may be another one's.
  for (auto cache = all.caches.rbegin(); cache != all.caches.rend(); ++cache) {
    if ((*cache)->has(address)) return *cache;
  }
  return nullptr;
}

namespace {

// Reads a file that was opened for it.
struct OpenFile {
  int number;
  bool is_direct;
};

int64_t read_file([[maybe_unused]] void* user, [[maybe_unused]] void* to, [[maybe_unused]] int64_t bytes,
                  [[maybe_unused]] int64_t offset) {
#ifdef _WIN32
  return -ENOSYS;
#else
  const auto* const file = static_cast<const OpenFile*>(user);
  const ssize_t got = pread(file->number, to, static_cast<size_t>(bytes), offset);
  if (got < 0) return -errno;
#ifdef POSIX_FADV_DONTNEED
  // What was read without the system's cache is not there; everything else would push out what other programs use.
  if (!file->is_direct) posix_fadvise(file->number, offset, got, POSIX_FADV_DONTNEED);
#endif
  return got;
#endif
}

// A cache and the file that it reads, which is its owner's.
struct OpenCache {
  OpenFile file;
  std::shared_ptr<ExpertCache> cache;
};

}  // namespace
}  // namespace edge_rt

// Opens a cache that stands for `bytes` addresses from `base` on and reads a file, whose number stays the caller's and
// must stay open; `is_direct`: it was opened past the system's cache. `pools` is [count][2]: bytes of a slot, a
// multiple of 4096, and slots. `read` takes the place of the file, or is null. Returns null without memory, and on
// Windows.
EDGE_RT_EXPORT void* edge_rt_experts_open(const void* base, int64_t bytes, int file, int is_direct,
                                          const int64_t* pools, int count, edge_rt::ReadAt read, void* user) {
  using edge_rt::ExpertCache;
  return edge_rt::guarded(static_cast<void*>(nullptr), [&]() -> void* {
    std::vector<ExpertCache::Pool> all;
    for (int i = 0; i < count; ++i) all.push_back({pools[2 * i], pools[2 * i + 1]});
    auto made = std::make_unique<edge_rt::OpenCache>();
    made->file = {file, is_direct != 0};
    if (read == nullptr) read = edge_rt::read_file, user = &made->file;
    made->cache = std::make_shared<ExpertCache>(static_cast<const uint8_t*>(base), bytes, all, read, user);
    if (!made->cache->is_open()) return nullptr;
    edge_rt::Table& caches = edge_rt::table();
    const std::lock_guard<std::mutex> lock(caches.mutex);
    caches.caches.push_back(made->cache);
    return made.release();
  });
}

// Gives a cache back. No pass that reads it may be under way.
EDGE_RT_EXPORT void edge_rt_experts_close(void* handle) {
  auto* const open = static_cast<edge_rt::OpenCache*>(handle);
  {
    edge_rt::Table& caches = edge_rt::table();
    const std::lock_guard<std::mutex> lock(caches.mutex);
    caches.caches.erase(std::find(caches.caches.begin(), caches.caches.end(), open->cache));
  }
  delete open;
}

// Passes that wait for reads fail at once, and so do those to come, until `is_stopped` is 0 again.
EDGE_RT_EXPORT void edge_rt_experts_stop(void* handle, int is_stopped) {
  static_cast<edge_rt::OpenCache*>(handle)->cache->stop(is_stopped != 0);
}

// Writes hits, misses, bytes that were read, microseconds that passes waited and that reads took, and failed reads.
EDGE_RT_EXPORT void edge_rt_experts_counts(void* handle, int64_t* out) {
  const edge_rt::ExpertCacheCounts found = static_cast<edge_rt::OpenCache*>(handle)->cache->counts();
  const int64_t all[] = {found.hits, found.misses, found.bytes, found.waited_us, found.reading_us, found.failures};
  std::copy(std::begin(all), std::end(all), out);
}
