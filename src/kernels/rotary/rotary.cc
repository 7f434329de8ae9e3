#include "kernels/rotary/rotary.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "kernels/rotary/args.h"
#include "kernels/torch/autograd.h"
#include "kernels/torch/dispatch.h"
#include "kernels/torch/tensor_checks.h"

namespace halflife::kernels {
namespace {

at::Tensor RotateFused(const at::Tensor& x_in, const RotaryTable& table, float direction) {
  const at::Tensor x = x_in.contiguous();
  at::Tensor out = at::empty_like(x);
  WithStorage(x, [&]<typename T>() {
    const RotaryTokens<T> tokens = {.x = Elements<T>(x),
                                    .cos = table.cos.const_data_ptr<float>(),
                                    .sin = table.sin.const_data_ptr<float>(),
                                    .rows = table.rows.const_data_ptr<int64_t>(),
                                    .out = MutableElements<T>(out),
                                    .num_tokens = x.size(0) * x.size(1),
                                    .num_heads = x.size(2),
                                    .half = x.size(3) / 2,
                                    .direction = direction};
    RunOn(
        x,
        [&] {
          at::parallel_for(0, tokens.num_tokens, 64,
                           [&](int64_t begin, int64_t end) { cpu::Rotate(tokens, begin, end); });
        },
        [&](auto stream) { cuda::Rotate(tokens, stream); });
  });
  return out;
}

at::Tensor FusedRotary(const at::Tensor& x, const RotaryTable& table) {
  const auto forward = [&]() -> Forwarded {
    return {.outputs = {RotateFused(x, table, 1.0f)},
            .saved = {table.cos, table.sin, table.rows},
            .backward = [](const BackwardCall& call) -> Tensors {
              const Tensors& saved = call.saved;
              return {RotateFused(call.grads[0], {saved[0], saved[1], saved[2]}, -1.0f)};
            }};
  };
  return Apply({.name = "ApplyRotary", .inputs = {x}, .forward = forward})[0];
}

// In LibTorch calls: fp64.
at::Tensor RotateComposed(const at::Tensor& x, const RotaryTable& table) {
  const at::ScalarType compute = ComputeType(x);
  const int64_t half = x.size(3) / 2;
  const auto pick = [&](const at::Tensor& values) {  // [B, T, 1, d/2]
    return values.index_select(0, table.rows.flatten())
        .to(compute)
        .view({x.size(0), x.size(1), 1, half});
  };
  const at::Tensor cos = pick(table.cos), sin = pick(table.sin);
  const at::Tensor a = x.narrow(3, 0, half).to(compute), b = x.narrow(3, half, half).to(compute);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, 3).to(x.scalar_type());
}

// base^(-2j/d) rounded to fp32, as the public implementations keep it.
float InverseFrequency(int64_t j, int64_t dim, double base) {
  return static_cast<float>(
      std::pow(base, -2.0 * static_cast<double>(j) / static_cast<double>(dim)));
}

// Smallest and largest of a tensor on the CPU; (0, -1) of none.
std::pair<int64_t, int64_t> Bounds(const at::Tensor& x_in) {
  if (x_in.numel() == 0) return {0, -1};
  const at::Tensor x = x_in.contiguous();
  const int64_t* begin = x.const_data_ptr<int64_t>();
  const auto [low, high] = std::minmax_element(begin, begin + x.numel());
  return {*low, *high};
}

RotaryTable CpuTable(const at::Tensor& positions, int64_t dim, double base) {
  const auto [low, high] = Bounds(positions);
  const int64_t first = low, num_rows = high - low + 1, half = dim / 2;
  const auto options = positions.options().dtype(at::kFloat);
  RotaryTable table = {.cos = at::empty({num_rows, half}, options),
                       .sin = at::empty({num_rows, half}, options),
                       .rows = positions - first};
  float* cos = table.cos.mutable_data_ptr<float>();
  float* sin = table.sin.mutable_data_ptr<float>();
  for (int64_t j = 0; j < half; ++j) {
    const float frequency = InverseFrequency(j, dim, base);
    for (int64_t row = 0; row < num_rows; ++row) {
      const float angle = static_cast<float>(first + row) * frequency;
      cos[row * half + j] = std::cos(angle);
      sin[row * half + j] = std::sin(angle);
    }
  }
  return table;
}

struct TableRows {
  at::Tensor positions;  // [R] fp64
  at::Tensor rows;       // [B, T] int64
};
// On the CPU a row for each position between the smallest and the largest. Elsewhere one a token:
// the two would have to be read back from the device.
TableRows RowsOf(const at::Tensor& positions) {
  const auto options = positions.options().dtype(at::kDouble);
  if (!positions.is_cpu())
    return {.positions = positions.flatten().to(at::kDouble),
            .rows = at::arange(positions.numel(), positions.options()).view_as(positions)};
  const auto [low, high] = Bounds(positions);
  return {.positions = at::arange(low, high + 1, options), .rows = positions - low};
}

void CheckXposRange(const at::Tensor& positions, const XposConfig& config) {
  constexpr double kMaxExponent = 40;
  if (!positions.is_cpu() || positions.numel() == 0) return;
  const auto [low, high] = Bounds(positions);
  const double steepest = -std::log(config.gamma / (1 + config.gamma)) / config.scale_base;
  const double farthest =
      std::max(static_cast<double>(high) - config.centre, config.centre - static_cast<double>(low));
  HL_CHECK_AS(ExitCode::kUsage, farthest * steepest <= kMaxExponent, "xPos of positions ", low,
              " to ", high, " with centre ", config.centre, " scales by e^", farthest * steepest,
              "; at most ", std::floor(kMaxExponent / steepest),
              " tokens off the centre would work");
}

void CheckTable(const at::Tensor& x, const RotaryTable& table) {
  const at::Tensor &cos = table.cos, &sin = table.sin, &rows = table.rows;
  HL_CHECK(x.defined() && x.dim() == 4 && x.size(3) >= 2 && x.size(3) % 2 == 0 && cos.defined() &&
               cos.dim() == 2 && FitsBeside(x, cos, {cos.size(0), x.size(3) / 2}) &&
               FitsBeside(x, sin, cos.sizes()) && cos.scalar_type() == at::kFloat &&
               sin.scalar_type() == at::kFloat && FitsBeside(x, rows, {x.size(0), x.size(1)}) &&
               rows.scalar_type() == at::kLong,
           "ApplyRotary to x ", Describe(x), " with cos ", Describe(cos), ", sin ", Describe(sin),
           ", rows ", Describe(rows),
           "; x [B, T, H, d] with d even, cos and sin [R, d/2] fp32, rows [B, T] int64, on one "
           "device, would work");
  if (!rows.is_cpu()) return;
  const auto [low, high] = Bounds(rows);
  HL_CHECK(low >= 0 && high < cos.size(0), "ApplyRotary: a token's row is ", low < 0 ? low : high,
           ", but the table has ", cos.size(0), "; was it made for other positions?");
}

}  // namespace

RotaryTable MakeRotaryTable(const at::Tensor& positions, int64_t dim, double base) {
  HL_CHECK(positions.scalar_type() == at::kLong && dim >= 2 && dim % 2 == 0,
           "rotary table of positions ", Describe(positions), " for heads of ", dim,
           "; int64 and an even head_dim would work");
  if (positions.is_cpu()) return CpuTable(positions, dim, base);
  const TableRows rows = RowsOf(positions);
  const auto options = positions.options().dtype(at::kFloat);
  const at::Tensor exponents = at::arange(dim / 2, options) * (-2.0 / static_cast<double>(dim));
  const at::Tensor angles = rows.positions.to(at::kFloat).unsqueeze(1) * at::pow(base, exponents);
  return {.cos = at::cos(angles), .sin = at::sin(angles), .rows = rows.rows};
}

XposTables MakeXposTables(const at::Tensor& positions, int64_t dim, const XposConfig& config) {
  HL_CHECK(positions.scalar_type() == at::kLong && dim >= 2 && dim % 2 == 0 && config.gamma > 0 &&
               config.scale_base > 0,
           "xPos tables of positions ", Describe(positions), " for heads of ", dim, ", gamma ",
           config.gamma, ", scale base ", config.scale_base,
           "; int64, an even head_dim and positive numbers would work");
  const TableRows rows = RowsOf(positions);
  const at::Tensor channel = at::arange(dim / 2, rows.positions.options());
  const at::Tensor part = channel * (2 / static_cast<double>(dim));  // 2j / d
  const at::Tensor rates = at::log((part + config.gamma) / (1 + config.gamma)) / config.scale_base;
  CheckXposRange(positions, config);
  const at::Tensor place = rows.positions.unsqueeze(1);
  const at::Tensor angles = place * at::pow(config.base, -part);
  const at::Tensor log_scale = (place - config.centre) * rates;
  const auto table = [&](const at::Tensor& scale) -> RotaryTable {
    return {.cos = (at::cos(angles) * scale).to(at::kFloat),
            .sin = (at::sin(angles) * scale).to(at::kFloat),
            .rows = rows.rows};
  };
  return {.q = table(at::exp(log_scale)), .k = table(at::exp(-log_scale))};
}

at::Tensor ApplyRotary(const at::Tensor& x, const RotaryTable& table) {
  CheckDTypes("ApplyRotary", {x});
  CheckTable(x, table);
  if (IsFused(x))
    return FusedRotary(x, {.cos = table.cos.contiguous(),
                           .sin = table.sin.contiguous(),
                           .rows = table.rows.contiguous()});
  return RotateComposed(x, table);
}

}  // namespace halflife::kernels
