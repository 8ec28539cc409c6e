// What the kernels of attention share: their arguments, as in spec_attention_gpu_args.h, and where rows lie in the
// cache. spec_attention.h says what is computed, in which order.

const int kKvTile = 16, kKvChunk = 64, kSpanChunks = 4, kKvSpan = 256, kKvGroup = 32;
const int kMaxHeadDim = 512, kMaxGroups = kMaxHeadDim / kKvGroup;
const float kNoScore = -3.0e38;

const int kCodedF32 = 0, kCodedF16 = 1, kCodedInt8 = 2, kCodedNibbles = 3, kCodedPairs = 4, kCodedUpper = 5;
const int kKvK8V4 = 3;

struct AttentionPass {
  Long rows, past, capacity, done, window;
  int chain;
  Ints row_map, parents, depths;
  int heads, kv_heads, group, head_dim, padded_dim, half_rotary;
  float scale, softcap, epsilon, clip;
  int interleaved, has_gates, norms_after_rotation, q_norm_of_row, k_norm_of_row;
  int shares_cache, norms_values, values_are_keys;
  int format;
  Floats qkv, cos, sin;
  Floats q_norm, k_norm, sinks, query_scale;
  Floats key_centre, key_balance, key_feedback;
  Bytes cache;
  Long plane_bytes[2];  // of keys, of values
  Floats y;
  Long first_query;
  Floats queries;
  Words query_codes;
  Floats query_scales;
  Ints query_sums;
};

struct AttentionState {
  Floats peak, sum, output_;
};

struct AttentionArgs {
  AttentionPass pass;
  Ints past, tree;
  AttentionState states;
  int block_queries;
  int folds;
};

KERNEL(AttentionArgs)

bool is(int flag) { return flag != 0; }

// A pass has one format, the bit of which is set in `choices`: code of the others is left out.
int format() { return findLSB(choices); }
int key_coding() { return format() <= kKvK8V4 ? min(format(), kCodedInt8) : format() - 1; }
int value_coding() { return format() < kKvK8V4 ? format() : max(format() - 1, kCodedNibbles); }
bool turns_keys() { return format() > kKvK8V4; }
bool turns_values() { return format() >= kKvK8V4; }
bool has_query_codes() { return format() >= kCodedInt8; }

int groups_of(int dim) { return (dim + kKvGroup - 1) / kKvGroup; }
int padded_codes(int dim) { return (dim + 63) / 64 * 64; }

// First position that a row at `position` sees.
int first_seen(int position) {
  const int window = low(args.pass.window);
  return window > 0 && position + 1 > window ? position + 1 - window : 0;
}
// The number of a row's first query of a kv head.
int query_index(int kv, int row) { return (kv * low(args.pass.rows) + row) * args.pass.group; }

// A row of qkv: [heads of queries, each with its gate | keys | values], the last two where the pass has them.
int query_features() { return args.pass.head_dim * (is(args.pass.has_gates) ? 2 : 1); }
uvec2 queries_of(int row) {
  const int parts = is(args.pass.shares_cache) ? 0 : is(args.pass.values_are_keys) ? 1 : 2;
  const int features = args.pass.heads * query_features() + parts * args.pass.kv_heads * args.pass.head_dim;
  return advanced(uvec2(args.pass.qkv), uint(row), 4u * features);
}
// `head` may be the number behind the last one: keys begin there.
uvec2 query_of(int row, int head) { return advanced(queries_of(row), uint(head), 4u * query_features()); }

// A plane of the cache: where codes, finer codes and scales begin, and their bytes in a row.
struct Plane {
  uvec2 codes, finer, extras;
  uint code_bytes, extra_bytes;
};

uint code_bytes_of(int coding, int dim) {
  return coding == kCodedF32   ? 4u * dim
         : coding == kCodedF16 ? 2u * dim
         : coding == kCodedInt8 ? uint(dim) : 16u * groups_of(dim);
}
uint code_planes_of(int coding) { return coding >= kCodedPairs ? 2u : 1u; }
uint extra_bytes_of(int coding, int dim) {
  return coding < kCodedInt8 ? 0u : (coding == kCodedInt8 ? 2u : 4u) * groups_of(dim);
}
uint row_bytes_of(int coding, int dim) {
  return code_planes_of(coding) * code_bytes_of(coding, dim) + extra_bytes_of(coding, dim);
}

// Of a kv head's keys, or values.
Plane plane_of(bool of_keys, int kv) {
  const int dim = args.pass.head_dim, coding = of_keys ? key_coding() : value_coding();
  const uint capacity = uint(low(args.pass.capacity));
  const uint before = of_keys ? 0u : uint(args.pass.kv_heads) * row_bytes_of(key_coding(), dim);
  Plane plane;
  plane.code_bytes = code_bytes_of(coding, dim);
  plane.extra_bytes = extra_bytes_of(coding, dim);
  plane.codes = advanced(uvec2(args.pass.cache), capacity, before + uint(kv) * row_bytes_of(coding, dim));
  plane.finer = advanced(plane.codes, capacity, plane.code_bytes);
  plane.extras = advanced(plane.codes, capacity, code_planes_of(coding) * plane.code_bytes);
  return plane;
}
uvec2 codes_of(Plane plane, int row) { return advanced(plane.codes, uint(row), plane.code_bytes); }
uvec2 finer_of(Plane plane, int row) { return advanced(plane.finer, uint(row), plane.code_bytes); }
uvec2 extras_of(Plane plane, int row) { return advanced(plane.extras, uint(row), plane.extra_bytes); }
