// The structs of quant_linear.h. Names that GLSL keeps for itself end with `_`.

const int TILE_ROWS = 16, BLOCK = 32, GROUP_ROWS = 8, MAX_PARTS = 3, MAX_FINE_RUNS = 16;

struct PackedWeight {
  Bytes data;
  Long tiles;
  Long blocks;
  int format;
  uint pad;
};

struct SumKind {
  int scaled;
  int times;
  int groups;
};
struct SumKinds {
  SumKind kinds[MAX_PARTS];
  int count;
};

struct FineBlocks {
  int count;
  int blocks;
  int begin[MAX_FINE_RUNS];
  int end[MAX_FINE_RUNS];
};

struct PackedParts {
  PackedWeight parts[MAX_PARTS];
  int sums[MAX_PARTS];
  int count;
  int alternate;
  SumKinds kinds;
  FineBlocks fine;
  uint pad;
};

struct Activations {
  Long rows;
  Long blocks;
  Bytes codes;
  Floats scale;
  Words sums[MAX_PARTS];
};

struct RoundRows {
  Floats x;
  Long features;
  Floats norm_weight;
  float epsilon;
  int rounds;
  SumKinds kinds;
  Activations out_;
  int is_layer_norm;
  Floats norm_bias;
  FineBlocks fine;
};

struct LinearSteps {
  int activation;
  float output_scale;
  float softcap;
  float residual_scale;
  float limit;
  float slope;
  float up_offset;
};
const int ACTIVATION_SWIGLU = 1, ACTIVATION_GEGLU = 2, ACTIVATION_RELU2 = 3, ACTIVATION_GELU_GATE = 4;

struct FetchAhead {
  Long far;
  Long near;
};

struct LinearRows {
  PackedParts weight;
  Activations in_;
  Long out_features;
  Long width;
  int paired;
  Floats bias;
  Floats gate;
  Floats residual;
  Floats y;
  Bytes unpacked;
  LinearSteps steps;
  Floats post_norm;
  Long post_width;
  float post_epsilon;
  FetchAhead fetch;
};

// Jobs by their addresses: those of a kernel's arguments, or others that lie in memory.
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer RoundJob { RoundRows its; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer LinearJob { LinearRows its; };

int rows_of_group(int rows, int group) { return min(rows - group * GROUP_ROWS, GROUP_ROWS); }
