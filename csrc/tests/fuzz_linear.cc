// Calls of the ops that read packed matrices.
#include <algorithm>
#include <cmath>

#include "tests/fuzz_parts.h"

namespace edge_rt::fuzz {
namespace {

constexpr int64_t kMostProducts = 50000;  // of a call: it should take a millisecond

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

MatrixSizes any_sizes(Random& random) {
  MatrixSizes sizes;
  sizes.format = static_cast<WeightFormat>(random.below(kWeightFormatCount));
  sizes.outputs = random.size(100);
  if (rounds_activations(sizes.format)) {
    const int64_t units = random.one_in(8) ? random.between(15, 36) : random.between(1, 6);
    sizes.inputs = unit_inputs(sizes.format) * divide_up(units, facts(sizes.format).unit_blocks);
  } else {
    sizes.inputs = random.size(200);
  }
  return sizes;
}

void set_matrix(Case& call, const MatrixSizes& sizes) {
  call.set("format", format_name(sizes.format));
  call.set("out_features", sizes.outputs);
  call.set("in_features", sizes.inputs);
}

// Steps that few models have, of a call whose inputs 0 to 5 and activation are chosen.
void add_steps(Case& call, Random& random, int64_t inputs, int64_t width) {
  call.inputs.resize(8);
  const int64_t groups = random.pick<int64_t>({1, 1, 2, 3, width});
  call.inputs[6] = floats(random, {width % groups == 0 ? width / groups : width}, -2.0f, 2.0f);
  call.inputs[7] = floats(random, {inputs}, -1.0f, 1.0f);
  call.inputs[6].present = random.one_in(4);
  call.inputs[7].present = call.inputs[2].present && random.one_in(3);
  // A row of zeros, or of equal numbers, is divided by the root of epsilon alone.
  if (call.inputs[6].present || call.inputs[7].present) call.set("epsilon", random.pick({1e-5f, 0.25f}));
  if (random.one_in(3)) call.set("norm", random.pick<std::string>({"rms", "layer"}));
  if (random.one_in(4)) call.set("output_scale", random.uniform(-2.0f, 2.0f));
  if (random.one_in(4)) call.set("softcap", random.pick({0.0f, 0.5f, 30.0f}));
  if (call.inputs[4].present && random.one_in(3)) call.set("residual_scale", random.uniform(-2.0f, 2.0f));
}

Case make_linear(Random& random) {
  Case call;
  call.op = "QuantLinear";
  MatrixSizes sizes = any_sizes(random);
  const int kind = static_cast<int>(random.below(4));  // 0, 1: plain, 2: gate given, 3: pairs of tiles
  if (kind == 3) sizes.outputs = 2 * kTileRows * random.between(1, 4);
  int64_t rows = random.one_in(20) ? 0 : random.size(40);
  rows = std::min(rows, std::max<int64_t>(1, kMostProducts / (sizes.outputs * sizes.inputs)));
  const int64_t width = kind == 3 ? sizes.outputs / 2 : sizes.outputs;
  set_matrix(call, sizes);
  if (kind == 2 && random.one_in(3)) {
    call.set("activation", std::string("gelu_gate"));
  } else if (kind >= 2) {
    call.set("activation", random.pick<std::string>({"swiglu", "geglu"}));
  } else if (random.one_in(2)) {
    call.set("activation", random.pick<std::string>({"none", "relu2"}));
  }
  call.inputs.resize(6);
  call.inputs[0] = floats(random, {rows, sizes.inputs}, -3.0f, 3.0f);
  call.inputs[1] = packed_matrix(random, sizes);
  call.inputs[2] = floats(random, {sizes.inputs}, -2.0f, 2.0f);
  call.inputs[3] = floats(random, {sizes.outputs}, -1.0f, 1.0f);
  call.inputs[4] = floats(random, {rows, width}, -5.0f, 5.0f);
  call.inputs[5] = floats(random, {rows, width}, -9.0f, 9.0f);
  for (size_t i = 2; i < 5; ++i) call.inputs[i].present = random.one_in(2);
  call.inputs[5].present = kind == 2;
  add_steps(call, random, sizes.inputs, width);
  if (call.inputs[2].present || random.one_in(3)) call.set("epsilon", random.pick({1e-6f, 1e-5f, 0.25f}));
  // A block of zeros, which has no scale.
  if (rows > 0 && random.one_in(4)) {
    for (int64_t i = 0; i < std::min<int64_t>(kBlock, sizes.inputs); ++i) call.inputs[0].set(i, 0.0f);
  }
  if (random.one_in(3)) call.set("fine_blocks", fine_blocks(random, {sizes.format}, sizes.inputs));
  call.outputs = {{rows, width}};
  call.output_types = {abi::kFloat};
  return call;
}

// A matrix of two or three parts with formats of their own; two of equal size may be pairs.
Case make_parts(Random& random) {
  Case call;
  call.op = "QuantLinear";
  const bool paired = random.one_in(3);
  const int64_t count = paired ? 2 : random.between(2, kMaxParts);
  std::vector<WeightFormat> formats;
  int64_t step = kBlock, outputs = 0;
  for (int64_t i = 0; i < count; ++i) {
    do {
      formats.push_back(static_cast<WeightFormat>(random.below(kWeightFormatCount)));
      if (!rounds_activations(formats.back())) formats.pop_back();
    } while (static_cast<int64_t>(formats.size()) <= i);
    step = std::max(step, unit_inputs(formats.back()));
  }
  const int64_t inputs = step * random.between(1, std::max<int64_t>(1, 6 * kBlock / step));
  std::string names, numbers;
  std::vector<uint8_t> all;
  const int64_t equal = kTileRows * random.between(1, 3);
  for (const WeightFormat format : formats) {
    const int64_t rows = paired ? equal : kTileRows * random.between(1, 4);
    const char* comma = names.empty() ? "" : ",";
    names += comma + format_name(format);
    numbers += comma + std::to_string(rows);
    outputs += rows;
    const Input part = packed_matrix(random, {format, rows, inputs});
    all.insert(all.end(), part.bytes.begin(), part.bytes.end());
  }
  const int64_t rows = random.size(std::max<int64_t>(1, std::min<int64_t>(40, kMostProducts / (outputs * inputs))));
  const int64_t width = paired ? outputs / 2 : outputs;
  call.set("format", names);
  call.set("part_rows", numbers);
  call.set("out_features", outputs);
  call.set("in_features", inputs);
  if (random.one_in(3)) call.set("fine_blocks", fine_blocks(random, formats, inputs));
  if (paired) call.set("activation", random.pick<std::string>({"swiglu", "geglu"}));
  call.inputs.resize(6);
  call.inputs[0] = floats(random, {rows, inputs}, -3.0f, 3.0f);
  call.inputs[1] = bytes(random, {static_cast<int64_t>(all.size())});
  call.inputs[1].bytes = all;
  call.inputs[1].alignment = random.pick<size_t>({64, 64, 16, 4});
  call.inputs[2] = floats(random, {inputs}, -2.0f, 2.0f);
  call.inputs[3] = floats(random, {outputs}, -1.0f, 1.0f);
  call.inputs[4] = floats(random, {rows, width}, -5.0f, 5.0f);
  call.inputs[5] = floats(random, {rows, width}, -9.0f, 9.0f);
  for (size_t i = 2; i < 5; ++i) call.inputs[i].present = random.one_in(2);
  call.inputs[5].present = false;
  add_steps(call, random, inputs, width);
  if (call.inputs[2].present) call.set("epsilon", 1e-5f);
  call.outputs = {{rows, width}};
  call.output_types = {abi::kFloat};
  return call;
}

bool wrong_part_rows(Case& call, Random& random) {
  call.set("part_rows", random.pick<std::string>({",", "16", "16,", "x,16", "16,16,16,16", "0,32", "-16,48", "1e2,16",
                                                  "99999999999999999999,16", "32,8", std::string(900, '1')}));
  call.words = {"part_rows is", "format has"};
  return true;
}

bool wrong_part_formats(Case& call, Random& random) {
  call.set("format", random.pick<std::string>({"w4k,", ",", "w4,w4,w4,w4", "w4,f16", "bf16,w4k", "w4,w9", "w4;w4k"}));
  call.words = {"format has", "format is", "in_features is", "weight is [", "fine_blocks"};
  return true;
}

Case make_embed(Random& random) {
  Case call;
  call.op = "QuantEmbed";
  const MatrixSizes sizes = any_sizes(random);
  const int64_t rows = random.one_in(20) ? 0 : random.size(40);
  set_matrix(call, sizes);
  if (random.one_in(2)) call.set("scale", random.uniform(-50.0f, 50.0f));
  if (random.one_in(2)) call.set("stays_in_file", random.below(2));
  call.inputs = {int64s({rows}), packed_matrix(random, sizes)};
  call.inputs[0].alignment = random.pick<size_t>({64, 8});
  for (int64_t i = 0; i < rows; ++i) {
    call.inputs[0].set(i, random.one_in(4) ? sizes.outputs - 1 : random.below(sizes.outputs));
  }
  call.outputs = {{rows, sizes.inputs}};
  call.output_types = {abi::kFloat};
  return call;
}

bool other_format(Case& call, Random& random) {
  const std::string name = kWeightFacts[random.below(kWeightFormatCount)].name;
  if (are_alike(name, call.attribute("format")->text)) return false;
  call.set("format", name);
  call.words = {"weight is [", "in_features is ", "fine_blocks"};
  return true;
}

bool matrix_value(Case& call, Random& random) {
  switch (random.below(3)) {
    case 0: call.set("format", random.pick<std::string>({"", "w9", "W4", "w4m ", std::string(700, 'x'), "f64"})); break;
    case 1:
      call.set("out_features", random.pick<int64_t>({0, -1, INT64_MIN, INT64_MAX, int64_t{1} << 40, (1 << 24) + 1}));
      break;
    default:
      call.set("in_features", random.pick<int64_t>({0, -32, INT64_MIN, INT64_MAX, int64_t{1} << 32, (1 << 24) + 32}));
  }
  call.words = {"format is", "out_features "};
  return true;
}

bool wrong_steps(Case& call, Random& random) {
  const float bad_real = random.pick({std::nanf(""), HUGE_VALF, -HUGE_VALF});
  switch (random.below(6)) {
    case 0: call.set("norm", random.pick<std::string>({"", "RMS", "batch"})); break;
    case 1: call.set("output_scale", bad_real); break;
    case 2: call.set("softcap", random.pick({bad_real, -1.0f})); break;
    case 3: call.set("residual_scale", bad_real); break;
    case 4:
      call.inputs[2].present = false;
      call.inputs[7].present = true;
      break;
    default: call.inputs[4].present = false; call.set("residual_scale", 0.5f);
  }
  call.words = {"norm is", "output_scale is", "softcap is", "residual_scale is", "norm_bias is given"};
  return true;
}

// Groups that do not divide a row.
bool wrong_groups(Case& call, Random& random) {
  const int64_t width = call.outputs[0][1], size = random.pick<int64_t>({0, width + 1, 2 * width, width - 1});
  if (size == 1) return false;
  call.inputs[6] = floats(random, {size}, -2.0f, 2.0f);
  call.words = {"post_norm is ["};
  return true;
}

bool no_gate(Case& call, Random&) {
  call.set("activation", std::string("gelu_gate"));
  call.inputs[5].present = false;
  call.words = {"but gate is missing", "residual is [", "post_norm is ["};
  return true;
}

bool wrong_fine(Case& call, Random& random) {
  call.set("fine_blocks", wrong_fine_blocks(random));
  call.words = {"fine_blocks"};
  return true;
}

bool uneven_inputs(Case& call, Random& random) {
  const std::string format = call.attribute("format")->text;
  if (format == "f16" || format == "f32" || format == "bf16") return false;
  call.set("in_features", call.attribute("in_features")->integer + random.between(1, 31));
  call.words = {"in_features is "};
  return true;
}

bool shifted_weight(Case& call, Random& random) {
  const std::string format = call.attribute("format")->text;
  call.inputs[1].alignment = format == "f32" ? random.pick<size_t>({1, 2}) : 1;
  call.words = {"weight does not begin"};
  return true;
}

}  // namespace

std::string format_name(WeightFormat format) { return facts(format).name; }

std::string fine_blocks(Random& random, const std::vector<WeightFormat>& formats, int64_t inputs) {
  int64_t unit = 1, runs = 0;
  for (const WeightFormat format : formats) {
    if (!rounds_activations(format)) return "";
    unit = std::max<int64_t>(unit, facts(format).unit_blocks);
  }
  std::string text;
  bool is_in = false;
  for (int64_t block = 0; block < inputs / kBlock; block += unit) {
    const bool wanted = random.one_in(3) && (is_in || runs < kMaxFineRuns);
    if (wanted && !is_in) ++runs;
    is_in = wanted;
    for (int64_t i = block; wanted && i < block + unit; ++i) text += (text.empty() ? "" : ",") + std::to_string(i);
  }
  return text;
}

std::string wrong_fine_blocks(Random& random) {
  return random.pick<std::string>({",", "0,", ",0", "0,0", "1,0", "x", "-1", "-9223372036854775808", "1e0", "0 1",
                                   "0-1", "9999999", "99999999999999999999", "2147483648", std::string(900, '9')});
}

bool are_alike(const std::string& one, const std::string& other) {
  WeightFormat a, b;
  return one == other || (weight_format_from_name(one.c_str(), &a) && weight_format_from_name(other.c_str(), &b) &&
                          stored_unit_bytes(a) == stored_unit_bytes(b) && unit_inputs(a) == unit_inputs(b));
}

namespace {

// Scales and minima of a unit of codes that is somewhere in a matrix, of those rows that the matrix has.
void set_scales(Random& random, WeightFormat format, int64_t begin, int64_t real_rows, Input* weight) {
  const UnitLayout at = unit_layout(format);
  if (facts(format).scales == ScaleKind::kExponent) {
    for (int64_t i = at.scales; i < at.d; ++i) weight->set<uint8_t>(begin + i, random.between(100, 127));
  }
  if (facts(format).scales == ScaleKind::kFloat8) {
    for (int64_t row = 0; row < std::min<int64_t>(kTileRows, real_rows); ++row) {
      weight->set((begin + at.d) / 4 + row, static_cast<float>(random.between(1, 100)) / 64.0f);
    }
    return;
  }
  for (int64_t i = at.d; i < at.bytes; i += 2) {
    if ((i - at.d) / 2 % kTileRows < real_rows) weight->set((begin + i) / 2, moderate_half(random));
  }
}

}  // namespace

Input packed_matrix(Random& random, const MatrixSizes& sizes) {
  const int64_t tiles = divide_up(sizes.outputs, kTileRows), units = divide_up(sizes.inputs, unit_inputs(sizes.format));
  const int64_t size = unit_bytes(sizes.format);
  Input weight = bytes(random, {tiles, units, stored_unit_bytes(sizes.format)});
  weight.alignment = random.pick<size_t>({64, 64, 16, 4});
  for (int64_t unit = 0; unit < tiles * units; ++unit) {
    const int64_t real_rows = std::min<int64_t>(kTileRows, sizes.outputs - unit / units * kTileRows);
    if (rounds_activations(sizes.format)) {
      set_scales(random, sizes.format, unit * size, real_rows, &weight);
      continue;
    }
    const int64_t real_inputs = std::min<int64_t>(kBlock, sizes.inputs - unit % units * kBlock);
    for (int64_t i = 0; i < kBlock * kTileRows; ++i) {
      if (i % kTileRows >= real_rows) continue;
      const bool is_real = i / kTileRows < real_inputs;
      const int64_t at = unit * kBlock * kTileRows + i;
      switch (sizes.format) {
        case WeightFormat::kF16: weight.set(at, is_real ? moderate_half(random) : uint16_t{0}); break;
        // A float's first half, from 2^-8 to 1.
        case WeightFormat::kBF16: weight.set<uint16_t>(at, is_real ? random.between(0x3b80, 0x3f80) : 0); break;
        default: weight.set(at, is_real ? random.uniform(-1.0f, 1.0f) : 0.0f);
      }
    }
  }
  return weight;
}

Subject quant_linear() {
  Subject subject{"QuantLinear",
                  make_linear,
                  {0, 1},
                  {{0, {1}}, {1, {0, 1, 2}}, {2, {0}}, {3, {0}}, {4, {0, 1}}, {5, {0, 1}}, {7, {0}}},
                  {"format", "out_features", "in_features"},
                  {1},
                  {},
                  {}};
  subject.own_mistakes = {{"format of other weights", other_format},
                          {"matrix attribute", matrix_value},
                          {"in_features uneven", uneven_inputs},
                          {"weight misaligned", shifted_weight},
                          {"epsilon",
                           [](Case& call, Random& random) {
                             call.set("epsilon", random.pick({std::nanf(""), -1.0f, -HUGE_VALF, HUGE_VALF}));
                             call.words = {"epsilon is"};
                             return true;
                           }},
                          {"activation",
                           [](Case& call, Random& random) {
                             call.set("activation",
                                      random.pick<std::string>({"", "gelu", "SwiGLU", std::string(600, 'a')}));
                             call.words = {"activation is"};
                             return true;
                           }},
                          {"norm and scales", wrong_steps},
                          {"fine blocks", wrong_fine},
                          {"post_norm of groups", wrong_groups},
                          {"gelu_gate alone", no_gate},
                          {"gate without an activation of gates",
                           [](Case& call, Random& random) {
                             call.inputs[5].present = true;
                             call.set("activation", random.pick<std::string>({"none", "relu2"}));
                             call.words = {"gate is given"};
                             return true;
                           }},
                          {"pairs uneven", [](Case& call, Random& random) {
                             const auto format = static_cast<WeightFormat>(random.below(kWeightFormatCount));
                             const int64_t inputs = unit_inputs(format);
                             const MatrixSizes sizes{format, 16 * random.between(0, 4) + 15, inputs};
                             set_matrix(call, sizes);
                             call.set("activation", std::string("swiglu"));
                             call.inputs[0] = floats(random, {3, inputs}, -1.0f, 1.0f);
                             call.inputs[1] = packed_matrix(random, sizes);
                             for (size_t i = 2; i < 8; ++i) call.inputs[i].present = false;
                             call.set("residual_scale", 1.0f);
                             call.set("fine_blocks", std::string());
                             call.words = {"tile pairs"};
                             return true;
                           }}};
  return subject;
}

Subject quant_linear_parts() {
  Subject subject{"QuantLinear",
                  make_parts,
                  {0, 1},
                  {{0, {1}}, {1, {0}}, {2, {0}}, {3, {0}}, {4, {0, 1}}, {7, {0}}},
                  {"format", "out_features", "in_features"},
                  {1},
                  {},
                  {}};
  subject.own_mistakes = {
      {"rows of parts", wrong_part_rows}, {"formats of parts", wrong_part_formats}, {"fine blocks", wrong_fine}};
  return subject;
}

Subject quant_embed() {
  Subject subject{"QuantEmbed", make_embed, {0, 1}, {{1, {0, 1, 2}}}, {"format", "out_features", "in_features"},
                  {1},          {},         {}};
  subject.own_mistakes = {{"format of other weights", other_format},
                          {"matrix attribute", matrix_value},
                          {"in_features uneven", uneven_inputs},
                          {"weight misaligned", shifted_weight},
                          {"scale",
                           [](Case& call, Random& random) {
                             call.set("scale", random.pick({std::nanf(""), HUGE_VALF, -HUGE_VALF}));
                             call.words = {"scale is not finite"};
                             return true;
                           }},
                          {"id out of range", [](Case& call, Random& random) {
                             if (call.inputs[0].count() == 0) return false;
                             const int64_t rows = call.attribute("out_features")->integer;
                             call.inputs[0].set(
                                 random.below(call.inputs[0].count()),
                                 random.pick<int64_t>({rows, -1, rows + 15, INT64_MIN, INT64_MAX, int64_t{1} << 32}));
                             call.words = {"ids["};
                             return true;
                           }}};
  return subject;
}

}  // namespace edge_rt::fuzz
