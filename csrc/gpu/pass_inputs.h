// What the host gives to many kernels of one pass, such as where its rows lie: in device memory once, for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <vector>

namespace edge_rt::gpu {

class PassStream;

class PassInputs {
 public:
  explicit PassInputs(PassStream* stream) : stream_(*stream) {}
  PassInputs(const PassInputs&) = delete;
  PassInputs& operator=(const PassInputs&) = delete;

  // Device memory with a copy of host memory, as PassStream::upload makes it, until the pass ends. Who asks for the
  // same bytes at the same address gets the same memory. nullptr: the stream has the error.
  const void* upload(const void* from, size_t bytes);

  // Device memory that `fill` starts to write out of the uploaded memory `of`, one place or several: the first time
  // that somebody asks for what is derived of these in the pass. nullptr: `fill` gave false, or the stream has the
  // error.
  using Fill = std::function<bool(void* to)>;
  const void* derive(const std::vector<const void*>& of, size_t bytes, const Fill& fill);

  // Whether nobody has named these numbers in this pass yet.
  bool is_first(const std::vector<int64_t>& numbers) { return named_.insert(numbers).second; }

  // Forgets everything; the pass has ended.
  void clear();

 private:
  struct Copy {
    const void* from;
    std::vector<uint8_t> bytes;
    void* memory;
  };
  struct Derived {
    std::vector<const void*> of;
    void* memory;
  };

  void* allocate(size_t bytes);

  PassStream& stream_;
  std::vector<Copy> copies_;
  std::vector<Derived> derived_;
  std::vector<void*> memory_;
  std::set<std::vector<int64_t>> named_;
};

}  // namespace edge_rt::gpu
