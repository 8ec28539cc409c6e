// An ONNX Runtime of our own making: as much of its table as the library calls, for programs without the real one.
//
// It is less kind than the real one: memory ends where the tensor ends, scratch memory begins in the middle of a cache
// line and is full of rubbish, work comes in any order, any call can be made to fail, and whatever the library does not
// give back is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ort_abi.h"

namespace edge_rt::fake {

// Memory of exactly `bytes` bytes whose address is a multiple of `alignment` (a power of two up to 64) and of no more.
// Guarded: its end is the end of a page, and what lies behind may not be touched; a vector instruction under a mask, in
// which no sanitizer looks, then fails too. Nothing: no bytes, and a null pointer.
enum class Place { kHeap, kGuarded, kNothing };

class Memory {
 public:
  Memory(size_t bytes, size_t alignment, Place place);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_;
  uint8_t* data_ = nullptr;
  void* base_ = nullptr;
  size_t mapped_ = 0;  // 0: from the heap
};

// Counts the calls that can fail, and makes the one of number `fails` (from 0) do so; -1: none.
struct Fault {
  int fails = -1;
  int calls = 0;
  bool strikes() { return calls++ == fails; }
  bool has_struck() const { return fails >= 0 && calls > fails; }
};

struct Tensor {
  int type;
  std::vector<int64_t> dims;
  std::unique_ptr<Memory> memory;
  Fault* fault;
};

struct Attribute {
  enum Kind { kInteger, kReal, kText, kIntegers };
  std::string name;
  Kind kind;
  int64_t integer = 0;
  float real = 0.0f;
  std::string text;
};

// Behind abi::Allocator. What it gives is filled with `rubbish`.
struct Allocator {
  Fault* fault;
  uint8_t rubbish;
};

// Behind abi::KernelInfo: a node of a graph.
struct Node {
  std::vector<Attribute> attributes;
  Allocator* allocator;
};

// Behind abi::KernelContext. Null inputs are optional ones that were left out.
struct Run {
  std::vector<std::unique_ptr<Tensor>> inputs;
  std::vector<std::unique_ptr<Tensor>> outputs;  // made when asked for; their number is the node's
  Fault* fault;
  uint8_t rubbish;  // that fills outputs
  Place output_place;
};

// Bytes of an element; 0 for a type that tensors here cannot have.
size_t element_size(int type);

// The interface as a release gives it: 1.31 has the slot that reads type and shape at once, 1.18 has not.
const abi::ApiBase* newest_release();
const abi::ApiBase* oldest_release();

// Gives the records that a registration hands over.
std::vector<const abi::OpRecord*> register_ops(const std::function<abi::Status*(abi::SessionOptions*)>& function);

// The text of a status, which is released.
std::string take_message(abi::Status* status);

// Statuses, shapes, allocators and scratch buffers that were given out and not yet given back.
int64_t live_objects();

}  // namespace edge_rt::fake
