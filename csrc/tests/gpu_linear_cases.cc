#include "tests/gpu_linear_cases.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/golden_ops.h"
#include "tests/gpu_tables.h"

namespace edge_rt::golden {
namespace {

constexpr int kRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33, 64, 100};
// One of every kernel.
constexpr int kFewRows[] = {1, 6, 15, 40};

// Inputs that fill the stages of the kernel for so many rows more than twice, of formats that may have larger units.
int64_t inputs_for(const std::vector<WeightFormat>& formats, int64_t rows) {
  if (!rounds_activations(formats[0])) return 150;
  int64_t step = kBlock;
  for (const WeightFormat format : formats) step = std::max(step, unit_inputs(format));
  const int64_t least = kBlock * (rows <= 2 ? 67 : rows <= 8 ? 35 : rows <= 16 ? 19 : 5);
  return (least + step - 1) / step * step;
}

// Matrices of random weights, and rows for them.
class LinearCase {
 public:
  // So many outputs of each format.
  LinearCase(std::string name, const std::vector<WeightFormat>& formats, const std::vector<int64_t>& outputs, int rows,
             bool paired = false)
      : name_(std::move(name) + "." + std::to_string(rows)), random_(name_), rows_(rows) {
    all_.inputs = inputs_for(formats, rows);
    for (size_t i = 0; i < formats.size(); ++i) {
      matrices_.emplace_back(random_, formats[i], outputs[i], all_.inputs);
      all_.parts.parts[i] = matrices_.back().packed();
      all_.parts.sums[i] = all_.parts.kinds.add(sum_kind(formats[i]));
      all_.outputs += outputs[i];
    }
    all_.parts.count = static_cast<int>(formats.size());
    all_.parts.alternate = paired && formats.size() > 1;
    options_.paired = paired;
    if (!paired) options_.steps.activation = Activation::kNone;
    width_ = paired ? all_.outputs / 2 : all_.outputs;
  }

  LinearOptions& options() { return options_; }
  // Blocks with 16 bits, in units of all formats.
  void refine(const std::vector<WeightFormat>& formats) {
    int64_t unit = 1;
    for (const WeightFormat format : formats) unit = std::max<int64_t>(unit, facts(format).unit_blocks);
    all_.parts.fine = some_fine_blocks(all_.inputs / kBlock, unit);
  }
  const float* of_inputs(float size) { return draw(all_.inputs, size); }
  const float* of_outputs(float size) { return draw(all_.outputs, size); }
  const float* of_width(float size) { return draw(width_, size); }
  const float* of_y(float size) { return draw(rows_ * width_, size); }

  void compare(const LauncherOf& kernels_of, int seeds) {
    const std::vector<float> x = random_.uniform(rows_ * all_.inputs, 3.0f);
    const auto bits = [&](const KernelTable& kernels) {
      Hash hash;
      hash.add(linear(kernels, all_, x, rows_, options_, &hash));
      return hash.value();
    };
    const uint64_t expected = bits(kernel_table(Isa::kScalar));
    for (int seed = 1; seed <= seeds; ++seed) {
      if (bits(gpu_kernels(kernels_of(static_cast<uint64_t>(seed)))) == expected) continue;
      std::fprintf(stderr, "%s, seed %d: other bits than the CPU's\n", name_.c_str(), seed);
      std::exit(1);
    }
  }

 private:
  const float* draw(int64_t count, float size) {
    drawn_.push_back(random_.uniform(count, size));
    return drawn_.back().data();
  }

  std::string name_;
  Random random_;
  int64_t rows_, width_;
  Matrices all_{};
  LinearOptions options_;
  std::vector<Matrix> matrices_;
  std::vector<std::vector<float>> drawn_;
};

void run_plain(const LauncherOf& kernels, WeightFormat format, int rows, int seeds) {
  LinearCase one(std::string("plain.") + format_name(format), {format}, {37}, rows);
  if (rows % 2 != 0) one.options().norm_weight = one.of_inputs(2.0f);
  one.compare(kernels, seeds);
}

void run_fine(const LauncherOf& kernels, WeightFormat format, int rows, int seeds) {
  LinearCase one(std::string("fine.") + format_name(format), {format}, {37}, rows);
  one.refine({format});
  one.options().norm_weight = one.of_inputs(2.0f);
  one.compare(kernels, seeds);
}

// Every step, in one combination or another.
constexpr int kStepCases = 5;
void run_steps(const LauncherOf& kernels, WeightFormat format, int which, int rows, int seeds) {
  const bool paired = which == 1 || which == 2;
  LinearCase one("steps" + std::to_string(which) + "." + format_name(format), {format}, {paired ? 64 : 37}, rows,
                 paired);
  LinearOptions& options = one.options();
  options.steps.activation = which == 3 ? Activation::kRelu2 : which == 4 ? Activation::kNone : Activation::kSwiglu;
  options.bias = which == 4 ? nullptr : one.of_outputs(1.0f);
  switch (which) {
    case 0:
      options.steps.activation = rows % 2 == 0 ? Activation::kSwiglu : Activation::kGeglu;
      options.gate = one.of_y(6.0f);
      options.residual = one.of_y(2.0f);
      break;
    case 1: options.residual = one.of_y(2.0f); break;
    case 2: options.steps = {Activation::kGeglu, 0.75f, 3.0f, 0.375f}; [[fallthrough]];
    case 3:
      options.residual = one.of_y(2.0f);
      options.post_norm = one.of_width(2.0f);
      options.norm_weight = one.of_inputs(2.0f);
      options.is_layer_norm = true;
      break;
    default:
      options.steps.softcap = 3.0f;
      options.norm_weight = one.of_inputs(2.0f);
      options.norm_bias = one.of_inputs(1.0f);
      options.is_layer_norm = true;
  }
  one.compare(kernels, seeds);
}

// Formats of codes behind this one, in a circle.
WeightFormat format_behind(WeightFormat format, int steps) {
  int index = static_cast<int>(format);
  while (steps > 0) {
    index = (index + 1) % kWeightFormatCount;
    if (rounds_activations(static_cast<WeightFormat>(index))) --steps;
  }
  return static_cast<WeightFormat>(index);
}

void run_parts(const LauncherOf& kernels, WeightFormat format, int rows, int seeds) {
  const WeightFormat second = format_behind(format, 1), third = format_behind(format, 7);
  LinearCase qkv(std::string("qkv.") + format_name(format), {format, second, third}, {32, 16, 21}, rows);
  qkv.options().bias = qkv.of_outputs(1.0f);
  qkv.compare(kernels, seeds);
  qkv.refine({format, second, third});
  qkv.compare(kernels, seeds);
  LinearCase gate_up(std::string("gate_up.") + format_name(format), {format, third}, {32, 32}, rows, true);
  gate_up.compare(kernels, seeds);
  gate_up.refine({format, third});
  gate_up.compare(kernels, seeds);
}

}  // namespace

void run_linear_cases(const LauncherOf& kernels, WeightFormat format, int seeds, bool all) {
  const int number = static_cast<int>(format);
  const auto is_wanted = [&](int index, int of) { return all || (index + number) % of == 0; };
  int index = 0;
  for (const int rows : kRows) {
    if (is_wanted(index++, 7)) run_plain(kernels, format, rows, seeds);
  }
  index = 0;
  for (const int rows : kFewRows) {
    for (int which = 0; which < kStepCases; ++which) {
      if (is_wanted(index++, kStepCases * 4)) run_steps(kernels, format, which, rows, seeds);
    }
  }
  if (!rounds_activations(format)) return;
  index = 0;
  for (const int rows : kFewRows) {
    if (is_wanted(index++, 4)) run_parts(kernels, format, rows, seeds);
  }
  index = 0;
  for (const int rows : kFewRows) {
    if (is_wanted(index++, 4)) run_fine(kernels, format, rows, seeds);
  }
}

void run_few_linear_cases(const LauncherOf& kernels, int seeds) {
  for (const WeightFormat format : {WeightFormat::kW2K, WeightFormat::kW4M, WeightFormat::kF16}) {
    for (const int rows : kFewRows) run_plain(kernels, format, rows, seeds);
  }
  for (const int rows : kFewRows) {
    run_steps(kernels, WeightFormat::kW4, 2, rows, seeds);
    run_steps(kernels, WeightFormat::kF32, 2, rows, seeds);
  }
}

}  // namespace edge_rt::golden
