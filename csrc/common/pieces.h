// Cuts scratch memory into pieces.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edge_rt {

// Hands out pieces of memory on 64-byte boundaries; with a null base it only counts.
class Pieces {
 public:
  explicit Pieces(char* base) : base_(base) {}

  template <class T>
  T* take(int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace edge_rt
