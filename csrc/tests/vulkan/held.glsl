// Behind the last line of every kernel that tests/gpu/held.py makes: where a kernel reaches memory, it asks here first
// whether that is held by somebody. A bit for each byte of the heap of gpu_pinned_heap.h says so.
//
// #define BEHIND_ARGS layout(align = 16) uvec2 heap; uvec2 held; uvec2 report; uint heap_bytes, args_bytes;

// `bytes` are at most 16, at `from` bytes behind the address; `line` is one of the kernel's source, or of what it includes.
// Short, as it stands in a kernel many times: of many strays one is told.
void check_held(const uvec2 address, const uint from, const uint bytes, const uint line) {
  uint borrow;
  const uint place = usubBorrow(address.x, pushed.of_kernel.heap.x, borrow) + from;
  bool is_held = address.y - pushed.of_kernel.heap.y - borrow == 0u && place < pushed.of_kernel.heap_bytes;
  if (is_held) {
    Words held = Words(pushed.of_kernel.held);
    const uint word = place >> 5, shift = place & 31u;
    uint bits = held.at[word] >> shift;
    if (bytes > 4u && shift + bytes > 32u) bits |= held.at[word + 1u] << (32u - shift);
    is_held = (~bits & ((1u << bytes) - 1u)) == 0u;
  } else {  // a function may get the kernel's arguments by their address
    const uvec2 own = uvec2(pushed.of_kernel);
    const uint behind = usubBorrow(address.x, own.x, borrow) + from;
    is_held = address.y - own.y - borrow == 0u && behind + bytes <= pushed.of_kernel.args_bytes;
  }
  if (!is_held) Words(pushed.of_kernel.report).at[0] = line << 8 | bytes;
}
