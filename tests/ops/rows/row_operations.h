// The row operations as a table. For each: what it computes, on which operands and shapes, and how
// exact it is. row_operations_test.cc checks the properties that all of them have, and
// step_kernels_gpu_test.cc compares the devices.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "ops/convolution/short_conv.h"
#include "ops/random_tensors.h"
#include "ops/rows/bias_map.h"
#include "ops/rows/decay_gates.h"
#include "ops/rows/delta_gates.h"
#include "ops/rows/dropout.h"
#include "ops/rows/focus_heads.h"
#include "ops/rows/layer_norm.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/rotary.h"
#include "ops/rows/state_space_gates.h"
#include "ops/rows/swiglu.h"
#include "ops/rows/token_shift.h"
#include "ops/torch/column_slices.h"

namespace halflife::test {

using Tensors = std::vector<at::Tensor>;

// Returns the tensors in `dtype`.
inline Tensors To(at::ScalarType dtype, Tensors tensors) {
  for (at::Tensor& x : tensors) x = x.to(dtype);
  return tensors;
}

// Returns the buffer of a gradient of `width` columns between other columns of a matrix. Its rows
// are aligned for kernels that access packs if the width is a multiple of 16.
inline ops::ColumnSlice Columns(int64_t width) {
  const int64_t before = width % 16 == 0 ? 8 : 3;
  return {.columns = std::make_shared<ops::SharedMatrix>(std::vector<int64_t>{before, width, 8}),
          .part = 1};
}

struct RowOperation {
  struct Shape {
    int64_t rows, width;  // rows is even: operations on sequences take two of rows / 2 tokens.
  };
  std::string name;
  std::function<at::Tensor(const Tensors&)> run;
  // Operands in fp64 are converted to the tested type. Operands in fp32 (weights) stay fp32.
  std::function<Tensors(int64_t rows, int64_t width)> operands;
  std::vector<Shape> shapes;
  double fp32 = 3e-6;  // Error of the fp32 loops relative to the largest value.
  int roundings = 1;   // Roundings of a value to bf16. 0: the value stays fp32.
  int weight_roundings =
      0;  // Roundings in gradients of fp32 weights, if intermediate results are stored.
};
inline void PrintTo(const RowOperation& operation, std::ostream* out) { *out << operation.name; }

// `others` and each of `widths` with `rows` rows.
inline std::vector<RowOperation::Shape> Widths(int64_t rows, const std::vector<int64_t>& widths,
                                               std::vector<RowOperation::Shape> others = {}) {
  std::vector<RowOperation::Shape> shapes = std::move(others);
  for (const int64_t width : widths) shapes.push_back({rows, width});
  return shapes;
}

// Returns the layer norms of two parts as one row. The second has no beta.
inline at::Tensor TwoLayerNorms(const Tensors& in) {
  return at::cat(ops::LayerNorms({{.x = in[0], .gamma = in[2], .beta = in[3]},
                                  {.x = in[1], .gamma = in[4], .beta = {}}},
                                 1e-3),
                 -1);
}
inline Tensors LayerNormOperands(int64_t rows, int64_t width) {
  return {Normal({rows, width}, 1) * 2 + 0.5, Normal({rows, width}, 2),
          Normal({width}, 3, at::kFloat), Normal({width}, 4, at::kFloat),
          Normal({width}, 5, at::kFloat)};
}

// About ten roundings of 2^-24 each; gradients of weights sum a few hundred rows. eps bounds how
// far the terms of dx cancel, which they almost do in rows of one or two channels.
inline std::vector<RowOperation> Norms() {
  const auto one = [](int64_t rows, int64_t width) {
    return Tensors{Normal({rows, width}, 1), Uniform({width}, 3).to(at::kFloat)};
  };
  const auto two = [](int64_t rows, int64_t width) {
    return Tensors{Normal({rows, width}, 1), Normal({rows, width}, 2) * 3,
                   Uniform({width}, 3).to(at::kFloat)};
  };
  const auto x = [](int64_t rows, int64_t width) { return Tensors{Normal({rows, width}, 1)}; };
  // Several rows for each warp of a GPU's gradient, rows of 1, 2 and 4 warps, and rows that do not
  // fit in its registers.
  const auto widths = Widths(150, {1, 7, 16, 36, 64, 300, 1000, 1024},
                             {{790, 264}, {22, 1500}, {22, 2104}, {4, 4501}, {10, 5000}});
  const auto sum_and_norm = [](const Tensors& in) {
    const ops::ResidualNorm y = ops::AddRmsNorm(in[0], in[1], in[2], 1e-2);
    return y.sum + y.normed;
  };
  const auto real = [](double eps) {
    return [eps](const Tensors& in) { return ops::RealNorm(in[0], eps); };
  };
  return {
      {"RmsNorm", [](const Tensors& in) { return ops::RmsNorm(in[0], in[1], 1e-2); }, one, widths},
      {"GatedRmsNorm",
       [](const Tensors& in) { return ops::GatedRmsNorm(in[0], in[1], in[2], 1e-2); }, two, widths},
      {"RmsNormWithASigmoid",
       [](const Tensors& in) {
         return ops::GatedRmsNorm(in[0], in[1], in[2], 1e-2, kernels::NormGate::kSigmoid);
       },
       two, widths},
      {"GatedRmsNormIntoColumns",
       [](const Tensors& in) {
         const auto pairs = [](const at::Tensor& rows) { return rows.view({-1, 2, rows.size(1)}); };
         const at::Tensor gate = pairs(in[1]);
         return ops::GatedRmsNorm(pairs(in[0]), gate, in[2], 1e-2, kernels::NormGate::kSilu,
                                  Columns(2 * gate.size(2)))
             .view(in[0].sizes());
       },
       two, widths},
      {"AddRmsNorm", sum_and_norm, two, widths, 3e-6, /*roundings=*/3, /*weight_roundings=*/1},
      {"RealNorm", real(0.5), x,
       Widths(150, {2, 3, 7, 16, 48, 64, 300, 1000}, {{4, 4500}, {4, 4501}}), 3e-6, 0},
      {"RealNormWithoutEps", real(0), x, {{320, 32}}, 3e-6, /*roundings=*/0},
      {"TwoLayerNorms", TwoLayerNorms, LayerNormOperands,
       Widths(300, {2, 7, 16, 31, 64, 128, 300, 2100}, {{4, 4501}}), 5e-6}};
}

// Queries and keys of a head. Backward reads the rounded output.
inline std::vector<RowOperation> UnitNorms() {
  const auto both = [](const Tensors& in) {
    const ops::UnitNormPair y = ops::UnitNorm({.q = in[0], .k = in[1]}, 1e-2);
    return at::cat({y.q, y.k}, -1);
  };
  const auto operands = [](int64_t rows, int64_t width) {
    return Tensors{Normal({rows, width}, 1), Normal({rows, width}, 2) * 3};
  };
  return {{"UnitNorm", both, operands,
           Widths(150, {1, 7, 16, 36, 64, 300, 1000, 1024}, {{4, 4501}, {10, 5000}}), 3e-6,
           /*roundings=*/2}};
}

// Returns the decay and beta as one row, of heads with one decay and of four heads with one per
// channel.
inline std::vector<RowOperation> DeltaGates() {
  std::vector<RowOperation> gates;
  for (const double bound : {0.0, -5.0})
    for (const bool per_channel : {false, true}) {
      const auto run = [bound](const Tensors& in) {
        const ops::DeltaGatesOutput y =
            ops::DeltaGates({.x = in[0],
                             .bias = in[2],
                             .a_log = in[3],
                             .b = in[1],
                             .x_gradient = bound < 0 ? Columns(in[0].size(1)) : ops::ColumnSlice(),
                             .b_gradient = bound < 0 ? Columns(in[1].size(1)) : ops::ColumnSlice()},
                            {.bound = bound, .beta_scale = 2});
        return at::cat({y.log_decay, y.beta}, -1);
      };
      const auto operands = [per_channel](int64_t rows, int64_t width) {
        const int64_t channels = per_channel ? width : 1, heads = per_channel ? 4 : width;
        return Tensors{Normal({rows, heads * channels}, 1) * 3, Normal({rows, heads}, 2) * 3,
                       Normal({heads * channels}, 3, at::kFloat),
                       0.3 * Normal({heads}, 4, at::kFloat)};
      };
      gates.push_back({std::string("DeltaGates") + (per_channel ? "PerChannel" : "") +
                           (bound < 0 ? "WithABound" : ""),
                       run, operands, Widths(150, {1, 7, 31, 33, 64, 100}, {{1500, 8}}), 3e-6,
                       /*roundings=*/0});
    }
  gates.push_back(
      {"DeltaBeta",
       [](const Tensors& in) {
         return ops::DeltaGates({.x = {}, .bias = {}, .a_log = {}, .b = in[0]}, {}).beta;
       },
       [](int64_t rows, int64_t width) {
         return Tensors{Normal({rows, width}, 1) * 3};
       },
       Widths(150, {1, 16, 33}), 3e-6, /*roundings=*/0});
  return gates;
}

// Returns the step and the log decay as one row. The variant with limits writes the gradient of x
// to columns of a matrix, and the last one reads columns.
inline std::vector<RowOperation> StepGates() {
  const auto run = [](const ops::StepGateConfig& config, int64_t first) {
    return [=](const Tensors& in) {
      const int64_t width = in[1].size(0);
      const auto [step, log_decay] =
          ops::StepGate({.x = first > 0 ? in[0].narrow(1, first, width) : in[0],
                         .bias = in[1],
                         .a_log = in[2],
                         .x_gradient = config.least > 0 ? Columns(width) : ops::ColumnSlice()},
                        config);
      return at::cat({step, log_decay}, -1);
    };
  };
  const auto operands = [](int64_t others) {
    return [=](int64_t rows, int64_t width) {
      return Tensors{Normal({rows, width + others}, 1) * 3, Normal({width}, 2, at::kFloat),
                     Normal({width}, 3, at::kFloat)};
    };
  };
  // Less than a block of heads and more, and more rows than the partial sums cover at once.
  const auto shapes = Widths(150, {1, 7, 16, 33, 101, 300}, {{2, 1}, {1500, 8}});
  return {{"StepGate", run({}, 0), operands(0), shapes, 3e-6, /*roundings=*/0},
          {"StepGateWithLimits", run({.least = 0.1, .most = 2}, 0), operands(0), shapes, 3e-6, 0},
          {"StepGateFromColumn3", run({}, 3), operands(8), shapes, 3e-6, 0}};
}

// Three heads of `width` channels. The variant of columns reads x and the gate from wider matrices,
// and the gated ones write the gradient of the gate to columns of a matrix.
inline std::vector<RowOperation> SkipGates() {
  constexpr int64_t kHeads = 3;
  std::vector<RowOperation> gates;
  for (const bool gated : {true, false})
    for (const int64_t others : {0, 8})
      gates.push_back(
          {std::string("SkipGate") + (gated ? "" : "WithoutAGate") +
               (others > 0 ? "OfColumns" : ""),
           [=](const Tensors& in) {
             const int64_t dim = in[0].size(1);
             const auto columns = [&](const at::Tensor& x, int64_t first) {
               return others > 0 ? x.narrow(1, first, dim) : x;
             };
             return ops::SkipGate({.y = in[0],
                                   .x = columns(in[1], others),
                                   .skip = in[2],
                                   .gate = gated ? columns(in[3], others / 2) : at::Tensor(),
                                   .gate_gradient = gated ? Columns(dim) : ops::ColumnSlice()});
           },
           [=](int64_t rows, int64_t width) {
             const int64_t dim = kHeads * width;
             Tensors operands = {Normal({rows, dim}, 1), Normal({rows, dim + others}, 2),
                                 Normal({kHeads}, 3, at::kFloat)};
             if (gated) operands.push_back(Normal({rows, dim + others}, 4) * 2);
             return operands;
           },
           // Less than a pack, heads that end within one, and blocks of columns that end within a
           // head.
           Widths(150, {1, 5, 16, 43, 64}, {{2, 1}, {1500, 8}})});
  return gates;
}

// 2^-24 of logarithms up to 20, with about five roundings; dbias sums 150 rows.
inline std::vector<RowOperation> Decays() {
  std::vector<RowOperation> decays;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double floor : {-infinity, -0.1})
    decays.push_back(
        {floor > -1 ? "DecayGateWithAFloor" : "DecayGate",
         [floor](const Tensors& in) {
           return ops::DecayGate(in[0], in[1], {.scale = 1.0 / 16, .floor = floor});
         },
         [](int64_t rows, int64_t width) {
           return Tensors{Normal({rows, width}, 1) * 4, Normal({width}, 2, at::kFloat)};
         },
         Widths(150, {1, 7, 16, 31, 64, 128, 300, 1000}, {{1500, 8}}), 3e-6, /*roundings=*/0});
  decays.push_back({"NegativeExp", [](const Tensors& in) { return ops::NegativeExp(in[0]); },
                    [](int64_t rows, int64_t width) {
                      return Tensors{Normal({rows, width}, 1, at::kFloat)};
                    },
                    Widths(4, {1, 7, 64, 700}), 1e-6, /*roundings=*/0});
  for (const double most : {0.1, infinity})
    decays.push_back({most < 1 ? "HeadOffsetDecayWithABound" : "HeadOffsetDecay",
                      [most](const Tensors& in) {
                        return ops::HeadOffsetDecay(in[0], 5, {.scale = 0.3, .most = most});
                      },
                      [](int64_t, int64_t width) {
                        return Tensors{Normal({1, 5 * width}, 2, at::kFloat)};
                      },
                      Widths(2, {1, 7, 64}), 1e-6, /*roundings=*/0});
  return decays;
}

// Gated products of two tensors, of the halves of one matrix, and of columns with a dense tensor.
// Odd sizes, more than one block of threads, and packs that are aligned to 16 bytes and not.
inline std::vector<RowOperation> Gates() {
  std::vector<RowOperation> gates;
  for (const auto product : {ops::SwiGlu, ops::Glu}) {
    const std::string prefix = product == ops::Glu ? "Glu" : "SwiGlu";
    gates.push_back({prefix,
                     [product](const Tensors& in) { return product(in[0], in[1], {}); },
                     [](int64_t rows, int64_t width) {
                       return Tensors{Normal({rows, width}, 1) * 4, Normal({rows, width}, 2)};
                     },
                     {{2, 1}, {2, 31}, {30, 1001}, {70, 1000}},
                     1e-6});
    for (const bool gate_first : {true, false})
      gates.push_back({prefix + (gate_first ? "GateAndUp" : "UpAndGate"),
                       [=](const Tensors& in) {
                         const Tensors halves = in[0].chunk(2, 1);
                         return product(halves[gate_first ? 0 : 1], halves[gate_first ? 1 : 0], {});
                       },
                       [](int64_t rows, int64_t width) {
                         return Tensors{Normal({rows, 2 * width}, 1) * 4};
                       },
                       Widths(30, {40, 1024}), 1e-6});
    for (const int64_t first : {3, 8})
      gates.push_back(
          {prefix + "FromColumn" + std::to_string(first),
           [=](const Tensors& in) {
             return product(in[0].narrow(1, first, in[1].size(1)), in[1], {});
           },
           [](int64_t rows, int64_t width) {
             return Tensors{Normal({rows, width + 16}, 1) * 4, Normal({rows, width}, 2)};
           },
           Widths(30, {40, 1024}), 1e-6});
  }
  return gates;
}

// Three parts of a BiasMap as one row, the last without an activation; and SiLUs with and without a
// bias, the second of them with two gains. Gradients of biases sum 300 rows.
inline std::vector<RowOperation> BiasMaps() {
  using kernels::ElementMap;
  const auto three = [](const Tensors& in) {
    return at::cat(ops::BiasMap({{.x = in[0], .bias = in[3], .map = ElementMap::kEluPlusOne},
                                 {.x = in[1], .bias = {}, .map = ElementMap::kEluPlusOne},
                                 {.x = in[2], .bias = in[4]}}),
                   -1);
  };
  const auto gained = [](const Tensors& in) {
    const Tensors y = ops::BiasMap({{.x = in[0], .bias = in[2], .map = ElementMap::kSilu},
                                    {.x = in[1], .bias = {}, .map = ElementMap::kSilu}});
    const Tensors z = ops::BiasMap(
        {{.x = y[1], .bias = in[3], .gain = in[4]}, {.x = y[1], .bias = {}, .gain = in[5]}});
    return at::cat({y[0], z[0], z[1]}, -1);
  };
  return {{"BiasMap", three,
           [](int64_t rows, int64_t width) {
             return Tensors{Normal({rows, width}, 1) * 2, Normal({rows, 2 * width}, 2) * 2,
                            Normal({rows, 5}, 3), Normal({width}, 4), Normal({5}, 5)};
           },
           Widths(300, {1, 16, 31, 128, 300}, {{1500, 8}}), 3e-6, /*roundings=*/2},
          {"BiasMapWithGains", gained,
           [](int64_t rows, int64_t width) {
             return Tensors{Normal({rows, 7}, 1) * 2,
                            Normal({rows, width}, 2) * 2,
                            Normal({7}, 3),
                            Normal({width}, 4),
                            Normal({width}, 5, at::kFloat),
                            Normal({width}, 6, at::kFloat)};
           },
           Widths(300, {1, 16, 31, 128, 300}), 3e-6, /*roundings=*/4, /*weight_roundings=*/4}};
}

// The leaves that a test requests: of x or of a product with another tensor, with directions per
// token or per head, a value, and which of them are standardised.
struct FocusForm {
  std::string name;
  bool times = false, of_tokens = true, value = true, pool_x = true, norm = true, norm_value = true,
       elu = false;
};
inline std::vector<FocusForm> FocusForms() {
  return {{"FocusLeaves"},
          {"FocusLeavesOfValues", false, true, true, /*pool_x=*/false, true, false},
          {"FocusLeavesByElu", false, true, true, true, /*norm=*/false, false, /*elu=*/true},
          {"FocusLeavesOfHeads", false, /*of_tokens=*/false, /*value=*/false},
          {"FocusLeavesOfProducts", /*times=*/true, false, false},
          {"FocusLeavesOfPlainProducts", /*times=*/true, false, false, true, /*norm=*/false}};
}
inline constexpr int64_t kFocusHeads = 3;

inline ops::FocusLeaves MakeFocusLeaves(const FocusForm& form, const Tensors& in) {
  return ops::MakeFocusLeaves({.x = in[0],
                               .times = form.times ? in[1] : at::Tensor(),
                               .direction = form.of_tokens ? in[2] : in[3],
                               .value = form.value ? in[4] : at::Tensor()},
                              {.head_dim = in[0].size(2) / kFocusHeads,
                               .norm = form.norm,
                               .norm_value = form.norm_value,
                               .pool_x = form.pool_x,
                               .eps = 1e-2,
                               .scale = 0.3,
                               .elu = form.elu});
}
// Returns log weights and payloads as one row. Unused operands have a gradient of zero.
inline at::Tensor AsOneRow(const FocusForm& form, const ops::FocusLeaves& leaves,
                           const Tensors& in) {
  const at::ScalarType dtype = leaves.payload.scalar_type();
  at::Tensor all = at::cat({leaves.log_weight.unsqueeze(-1).to(dtype), leaves.payload}, -1);
  all = all.flatten(2) + 0 * in[form.of_tokens ? 3 : 2].sum().to(dtype);
  if (!form.times) all = all + 0 * in[1].sum();
  return form.value ? all : all + 0 * in[4].sum();
}
inline Tensors FocusOperands(int64_t rows, int64_t head_dim) {
  const std::vector<int64_t> shape = {2, rows / 2, kFocusHeads * head_dim};
  return {Normal(shape, 1) + 0.2, Normal(shape, 2), Normal(shape, 3),
          Normal({kFocusHeads, head_dim}, 4, at::kFloat), Normal(shape, 5)};
}
// sigmoid(scale q . seen) times the passed channels, which may be the same as `seen`.
inline at::Tensor FocusGate(bool norm, const Tensors& in) {
  return ops::FocusGate({.query = in[0], .pooled = in[1]},
                        {.norm = norm, .eps = 1e-2, .scale = 0.3});
}
inline Tensors FocusGateOperands(bool apart, int64_t rows, int64_t head_dim) {
  return {Normal({2, rows / 2, kFocusHeads * head_dim}, 1),
          Normal({2, rows / 2, kFocusHeads, apart ? 2 * head_dim : head_dim}, 2)};
}

// 2^-24 of values up to 10, with about ten roundings; the gradient of a direction sums 400 tokens.
// Heads of 130 channels use the separate steps.
inline std::vector<RowOperation> FocusHeads() {
  std::vector<RowOperation> heads;
  for (const FocusForm& form : FocusForms()) {
    const auto run = [form](const Tensors& in) {
      return AsOneRow(form, MakeFocusLeaves(form, in), in);
    };
    heads.push_back({form.name, run, FocusOperands, Widths(400, {3, 7, 16, 128}), 1e-5, 2});
    heads.push_back({form.name + "InSteps",
                     run,
                     FocusOperands,
                     {{400, 130}},
                     1e-5,
                     /*roundings=*/2,
                     /*weight_roundings=*/1});
  }
  for (const bool norm : {false, true})
    for (const bool apart : {false, true})
      heads.push_back(
          {std::string("FocusGate") + (norm ? "WithANorm" : "") + (apart ? "Apart" : ""),
           [norm](const Tensors& in) { return FocusGate(norm, in); },
           [apart](int64_t rows, int64_t width) { return FocusGateOperands(apart, rows, width); },
           Widths(300, {3, 7, 16, 128, 130}), 1e-5, /*roundings=*/2});
  return heads;
}

// Returns the document starts of two sequences: one starts with the slice (and hides the tail),
// others start inside it, at neighbouring tokens and around the first token of a block of 64.
inline at::Tensor DocumentStarts(int64_t seq_len) {
  at::Tensor starts = at::zeros({2, seq_len}, at::kBool);
  if (seq_len > 0) starts[0][0] = true;
  for (int64_t t = 3; t < seq_len; t += 11) starts[1][t] = true;
  for (int64_t t = 62; t < std::min<int64_t>(seq_len, 67); ++t) starts[0][t] = true;
  return starts;
}

struct ShiftForm {
  size_t num_mixes = 3;
  bool tail = true, documents = true;
};
// x, the tail, and mixes within and beyond [0, 1].
inline Tensors ShiftOperands(const ShiftForm& form, int64_t rows, int64_t width) {
  Tensors operands = {Normal({2, rows / 2, width}, 1), Normal({2, 1, width}, 2)};
  for (size_t i = 0; i < form.num_mixes; ++i)
    operands.push_back(Normal({width}, 3 + i, at::kFloat));
  return operands;
}
inline ops::TokenShiftInputs ShiftInputs(const ShiftForm& form, const Tensors& in) {
  ops::TokenShiftInputs inputs = {.x = in[0], .mixes = Tensors(in.begin() + 2, in.end())};
  if (form.tail) inputs.tail = in[1];
  if (form.documents) inputs.starts = DocumentStarts(in[0].size(1)).to(in[0].device());
  return inputs;
}
// Returns all outputs as one row. The tail is always read, so it has a gradient.
inline at::Tensor Shifted(const ShiftForm& form, const Tensors& in) {
  return at::cat(ops::TokenShift(ShiftInputs(form, in)), -1) + 0 * in[1].sum();
}

// A few products of 2^-24. Lengths around blocks of 64 tokens, whole and partial vectors.
inline std::vector<RowOperation> TokenShifts() {
  std::vector<RowOperation> shifts;
  const auto add = [&](const ShiftForm& form, std::vector<RowOperation::Shape> shapes) {
    shifts.push_back(
        {"TokenShift" + std::to_string(form.num_mixes) + (form.tail ? "Tail" : "") +
             (form.documents ? "Documents" : ""),
         [form](const Tensors& in) { return Shifted(form, in); },
         [form](int64_t rows, int64_t width) { return ShiftOperands(form, rows, width); },
         std::move(shapes)});
  };
  for (const bool tail : {false, true})
    for (const bool documents : {false, true})
      add({3, tail, documents},
          {{2, 21}, {4, 21}, {10, 21}, {126, 21}, {128, 21}, {130, 21}, {300, 21}, {300, 256}});
  for (const size_t num_mixes : {1, 2}) add({num_mixes}, {{140, 32}});
  return shifts;
}

// A sum of two products, each of at most the largest element. Positions repeat.
inline std::vector<RowOperation> Rotations() {
  const auto heads = [](int64_t count) {
    return [count](int64_t rows, int64_t width) {
      return Tensors{Normal({2, rows / 2, count, width}, 1)};
    };
  };
  const auto positions = [](const at::Tensor& x) {
    const int64_t seq_len = x.size(1);
    return (at::arange(2 * seq_len, at::kLong) % 50).view({2, seq_len}).to(x.device());
  };
  const auto table = [=](const at::Tensor& x) {
    return ops::MakeRotaryTable(positions(x), x.size(3), 10000);
  };
  const auto pair = [=](const Tensors& in) {
    const ops::RotatedPair rotated =
        ops::ApplyRotary(in[0].narrow(2, 0, 3), in[0].narrow(2, 3, 2), table(in[0]),
                         {.q = Columns(3 * in[0].size(3)), .k = Columns(2 * in[0].size(3))});
    return at::cat({rotated.q * 2, rotated.k}, 2);
  };
  const auto own_frequencies = [=](const Tensors& in) {
    const std::vector<double> frequencies = ops::RotaryFrequencies(in[0].size(3), 500);
    return ops::ApplyRotary(in[0], ops::MakeRotaryTable(positions(in[0]), frequencies, 1.5));
  };
  // Pairs of the first channels only, a quarter of a head.
  const auto partial = [=](const Tensors& in) {
    const std::vector<double> frequencies =
        ops::RotaryFrequencies((in[0].size(3) + 3) / 4 * 2, 500);
    return ops::ApplyRotary(in[0].narrow(2, 0, 2), in[0].narrow(2, 2, 1),
                            ops::MakeRotaryTable(positions(in[0]), frequencies))
        .q;
  };
  const auto widths = Widths(90, {2, 6, 12, 64, 128});
  return {{"RotaryOfPartsOfHeads", partial, heads(3), Widths(90, {2, 6, 7, 12, 64, 128}), 5e-7},
          {"Rotary", [=](const Tensors& in) { return ops::ApplyRotary(in[0], table(in[0])); },
           heads(3), widths, 5e-7},
          {"RotaryOfAPair", pair, heads(5), widths, 5e-7},
          {"RotaryOfOwnFrequencies", own_frequencies, heads(3), widths, 1e-6}};
}

inline std::vector<RowOperation> Dropouts() {
  const auto drop = [](const Tensors& in) {
    constexpr std::array<uint64_t, 2> kSamples = {7, (uint64_t{1} << 40) + 9};
    return ops::Dropout(in[0], {.rate = 0.3,
                                .key = MakeRandomKey(5, RandomPurpose::kDropout, 3),
                                .samples = ops::SampleNumbers(kSamples, in[0].device()),
                                .first_position = 10});
  };
  return {{"Dropout", drop,
           [](int64_t rows, int64_t width) {
             return Tensors{Normal({2, rows / 2, width}, 1)};
           },
           Widths(100, {6, 37, 64, 1001}), 1e-6}};
}

// Returns three convolutions in one pass, of columns of a matrix and of a dense one.
inline at::Tensor ThreeShortConvs(const Tensors& in) {
  const at::Tensor starts = DocumentStarts(in[0].size(1)).to(in[0].device());
  const at::Tensor documents = starts.to(at::kLong).cumsum(1);
  const int64_t width = in[1].size(0);
  std::vector<ops::ShortConvInputs> inputs;
  for (const int64_t i : {0, 1, 2})
    inputs.push_back({.x = i < 2 ? in[0].narrow(2, i * width, width) : in[4],
                      .weight = in[1 + i],
                      .tail = {},
                      .documents = documents,
                      .starts = starts,
                      .silu = i != 1});
  return at::cat(ops::ShortConvs(inputs), -1);
}

// Convolutions with documents and a tail, and of columns of a wider matrix. Weights sum 300 tokens.
inline std::vector<RowOperation> ShortConvolutions() {
  std::vector<RowOperation> convolutions;
  for (const int64_t taps : {4, 7})
    convolutions.push_back(
        {"ShortConvOf" + std::to_string(taps) + "Taps",
         [taps](const Tensors& in) {
           const at::Tensor starts = DocumentStarts(in[0].size(1)).to(in[0].device());
           return ops::ShortConv(
               {.x = in[0],
                .weight = in[1],
                .tail = in[2],
                .documents = starts.to(at::kLong).cumsum(1),
                .starts = starts,
                .x_gradient = taps > 4 ? Columns(in[0].size(2)) : ops::ColumnSlice()});
         },
         [taps](int64_t rows, int64_t width) {
           return Tensors{Normal({2, rows / 2, width}, 1), Normal({width, 1, taps}, 2, at::kFloat),
                          Normal({2, taps - 1, width}, 3)};
         },
         Widths(300, {21, 256}), 2e-6});
  for (const int64_t first : {3, 8})
    convolutions.push_back({"ShortConvFromColumn" + std::to_string(first),
                            [first](const Tensors& in) {
                              return ops::ShortConv({.x = in[0].narrow(2, first, in[2].size(0)),
                                                     .weight = in[1],
                                                     .bias = in[2],
                                                     .tail = in[3]});
                            },
                            [](int64_t rows, int64_t width) {
                              return Tensors{Normal({2, rows / 2, width + 16}, 1),
                                             Normal({width, 1, 4}, 2, at::kFloat),
                                             Normal({width}, 3, at::kFloat),
                                             Normal({2, 3, width}, 4)};
                            },
                            Widths(300, {21, 256}), 2e-6});
  convolutions.push_back({"ThreeShortConvs", ThreeShortConvs,
                          [](int64_t rows, int64_t width) {
                            return Tensors{Normal({2, rows / 2, 2 * width}, 1),
                                           Normal({width, 1, 4}, 2, at::kFloat),
                                           Normal({width, 1, 4}, 3, at::kFloat),
                                           Normal({2 * width, 1, 4}, 4, at::kFloat),
                                           Normal({2, rows / 2, 2 * width}, 5)};
                          },
                          Widths(300, {21, 64}), 2e-6});
  return convolutions;
}

inline std::vector<RowOperation> RowOperations() {
  std::vector<RowOperation> all;
  for (const auto part :
       {Norms, UnitNorms, Decays, DeltaGates, StepGates, SkipGates, Gates, BiasMaps, FocusHeads,
        TokenShifts, Rotations, Dropouts, ShortConvolutions})
    for (RowOperation& operation : part()) all.push_back(std::move(operation));
  return all;
}

}  // namespace halflife::test
