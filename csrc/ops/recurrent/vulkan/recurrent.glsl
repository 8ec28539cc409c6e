// Passes over states (recurrent.h), as recurrent_gpu.h has them on a device; behind kernel.glsl.

// Where a row's state comes from and goes to: levels of scratch memory; -1: the slot that is written.
struct StateStep {
  int from, to;
  int is_followed;  // by the row behind it
};
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer StateHead {
  int past, certain, advance_count, index, slot;
  StateStep steps[];
};

struct StateSlots {
  StateHead head;
  Floats first, second;
  Long stride;
};

// Fields of the structs of C++ that others begin with.
#define STATE_PASS                                                   \
  Long state_floats, transition_floats, rows, past, certain;         \
  Floats read, written;                                              \
  Ints advance;                                                      \
  Long advance_count;                                                \
  Ints parents;                                                      \
  StateHead steps;
#define MATRIX_PASS   \
  STATE_PASS          \
  MatrixShape shape;  \
  Floats prepared, y;

struct MatrixShape {
  Long key_heads, value_heads, key_dim, value_dim;
  int is_tiled;
};
