// Softmax attention, forward only and with gradients, compared with LibTorch's fused causal
// attention, which also checks the results first. Measures the cost of each pattern, bias, decay
// and scale relative to plain causal attention, alternating. Forward is also timed on one row of
// --long tokens, where blocks and windows skip most of the square. On a GPU in bf16, LibTorch's
// calls in blocks of queries are timed as well, which are used for cases that the kernels do not
// support. A form that fails has a problem instead of times. The others continue, and the exit code
// is 1.
//
//   build/cpu/bench/bench_softmax_attention --batch 8 --seq-len 512 --heads 4 --dim 64
//   build/cuda/bench/bench_softmax_attention --device cuda --batch 8 --seq-len 2048 --heads 16
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/host.h"
#include "kernels/common/cpu/instruction_set.h"
#include "ops/softmax_attention/composed.h"
#include "support/measure.h"
#include "support/program.h"

namespace halflife::bench {
namespace {

using ops::KeyPattern;

// fp32 sums of up to T terms; bf16 rounding of weights and outputs on both sides.
constexpr double kMaxError = 5e-6, kMaxErrorBf16 = 1e-2;

struct Options {
  int64_t batch = 8, seq_len = 512, heads = 4, dim = 64, long_row = 8192, block = 128;
  int rounds = 9, threads = 1;
  at::Device device = at::kCPU;

  at::TensorOptions floats() const { return at::TensorOptions(device).dtype(at::kFloat); }
};

struct Rows {
  at::Tensor q, k, v, dout, positions;
  Rows(const Options& o, int64_t batch, int64_t seq_len) {
    const at::TensorOptions stored =
        o.floats().dtype(o.device.is_cuda() ? at::kBFloat16 : at::kFloat);
    const auto make = [&] {
      return at::randn({batch, seq_len, o.heads, o.dim}, stored).requires_grad_();
    };
    q = make(), k = make(), v = make();
    dout = at::randn_like(q).detach();
    positions =
        at::arange(seq_len, o.floats().dtype(at::kLong)).unsqueeze(0).expand({batch, seq_len});
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(q.size(3))); }
};

struct Form {
  const char* name;
  at::Tensor (*run)(const Rows& rows, const Options& options);
};

at::Tensor LibTorch(const Rows& x, const Options&) {
  const auto by_head = [](const at::Tensor& y) { return y.transpose(1, 2); };
  return at::scaled_dot_product_attention(by_head(x.q), by_head(x.k), by_head(x.v), {}, 0.0,
                                          /*is_causal=*/true, x.scale())
      .transpose(1, 2);
}
at::Tensor Ours(const Rows& x, const ops::SoftmaxAttentionConfig& config,
                const at::Tensor& bias = {}) {
  return ops::SoftmaxAttention(
      {.q = x.q, .k = x.k, .v = x.v, .bias = bias, .positions = x.positions}, config);
}
at::Tensor Causal(const Rows& x, const Options&) { return Ours(x, {.scale = x.scale()}); }

const Form kForms[] = {
    {"four documents a row",
     [](const Rows& x, const Options&) {
       Rows packed = x;
       packed.positions = x.positions.remainder((x.q.size(1) + 3) / 4);
       return Ours(packed, {.scale = x.scale()});
     }},
    {"window",
     [](const Rows& x, const Options& o) {
       return Ours(x, {.scale = x.scale(), .pattern = {.window = 2 * o.block}});
     }},
    {"blocks",
     [](const Rows& x, const Options& o) {
       return Ours(x, {.scale = x.scale(), .pattern = {.block = o.block}});
     }},
    {"window that sees all",
     [](const Rows& x, const Options&) {
       return Ours(x, {.scale = x.scale(), .pattern = {.window = x.q.size(1)}});
     }},
    {"bias by distance (ALiBi)",
     [](const Rows& x, const Options& o) {
       const at::Tensor slopes = at::rand({o.heads, 1}, o.floats()) / 8;
       return Ours(x, {.scale = x.scale()}, -slopes * at::arange(x.q.size(1), o.floats()));
     }},
    {"decay with distance (xPos)",
     [](const Rows& x, const Options& o) {
       ops::SoftmaxAttentionConfig config = {.scale = x.scale()};
       for (int64_t c = 0; c < o.dim; ++c)
         config.decay_rates.push_back(-2.4e-3 * static_cast<double>(c) /
                                      static_cast<double>(o.dim));
       return Ours(x, config);
     }},
    {"factor of each query (InfoScale)",
     [](const Rows& x, const Options&) {
       Rows scaled = x;
       scaled.q = x.q * at::rand({1, x.q.size(1), 1, 1}, x.q.options().requires_grad(false));
       return Ours(scaled, {.scale = x.scale()});
     }},
    {"dropout of weights",
     [](const Rows& x, const Options&) {
       const at::Tensor samples = at::arange(x.q.size(0), x.positions.options());
       return Ours(x, {.scale = x.scale(),
                       .dropout = {.rate = 0.1,
                                   .key = MakeRandomKey(1, RandomPurpose::kTest, 0),
                                   .samples = samples}});
     }},
    {"far pairs (ReRoPE)", [](const Rows& x, const Options& o) {
       return ops::SoftmaxAttention(
           {.q = x.q, .k = x.k, .v = x.v, .far_q = x.q, .far_k = x.k, .positions = x.positions},
           {.scale = x.scale(), .far_from = o.block});
     }}};

// The fallback for causal rows on a GPU without the kernels.
const Form kInBlocks = {"LibTorch's calls in blocks of queries", [](const Rows& x, const Options&) {
                          return ops::ComposedSoftmaxAttention(
                              {.q = x.q, .k = x.k, .v = x.v, .positions = x.positions},
                              {.scale = x.scale()});
                        }};

double TimeOf(Timer& timer, const Form& form, const Rows& rows, const Options& o, bool gradients) {
  if (!gradients) {
    const at::NoGradGuard no_grad;
    return timer.Milliseconds([&] { form.run(rows, o); });
  }
  return timer.Milliseconds([&] {
    torch::autograd::grad({form.run(rows, o)}, {rows.q, rows.k, rows.v}, {rows.dout});
  });
}

// Returns the time of `form` relative to plain causal attention, as medians of pairs.
nlohmann::ordered_json Beside(const Form& form, const Rows& rows, const Options& o,
                              bool gradients) {
  const Form causal = {"causal", Causal};
  const int warm_ups = o.device.is_cuda() ? 10 : 1;  // For cold memory, and a GPU's clock.
  Timer timer(o.device), causal_timer(o.device);
  std::vector<double> times, plain, ratios;
  for (int i = -warm_ups; i < o.rounds; ++i) {
    if (i == 0) timer.StartCounting(), causal_timer.StartCounting();
    const double mine = TimeOf(timer, form, rows, o, gradients);
    const double other = TimeOf(causal_timer, causal, rows, o, gradients);
    if (i < 0) continue;
    times.push_back(mine), plain.push_back(other), ratios.push_back(mine / other);
  }
  return {{"form", form.name},
          {"ms", Median(times)},
          {"late_share", timer.late_share()},
          {"causal_ms", Median(plain)},
          {"causal_late_share", causal_timer.late_share()},
          {"over_causal", Median(ratios)}};
}

void CheckAgainstLibTorch(const Options& o) {
  const Rows rows(o, 1, 300);
  const at::NoGradGuard no_grad;
  const double error = RelativeRms(Causal(rows, o), LibTorch(rows, o).to(at::kDouble).contiguous());
  const double allowed = o.device.is_cuda() ? kMaxErrorBf16 : kMaxError;
  HL_CHECK(error <= allowed, "causal attention is off LibTorch's by ", error, "; ", allowed,
           " is allowed");
}

// Compares each of `forms` with plain causal attention and returns one row per form.
nlohmann::ordered_json RowsOf(const std::vector<Form>& forms, const Rows& rows, const Options& o,
                              bool gradients, Problems& problems) {
  nlohmann::ordered_json part = nlohmann::ordered_json::array();
  for (const Form& form : forms) {
    nlohmann::ordered_json row;
    const std::string problem = problems.Of([&] { row = Beside(form, rows, o, gradients); });
    if (!problem.empty()) row = {{"form", form.name}, {"problem", problem}};
    part.push_back(row);
  }
  return part;
}

nlohmann::ordered_json Run(const Options& o, Problems& problems) {
  nlohmann::ordered_json report = {
      {"device", DeviceName(o.device)},
      {"batch", o.batch},
      {"seq_len", o.seq_len},
      {"heads", o.heads},
      {"dim", o.dim},
      {"block", o.block},
      {"threads", o.threads},
      {"instruction_set", kernels::cpu::NameOf(kernels::cpu::InstructionSetInUse())}};
  const std::string off = problems.Of([&] { CheckAgainstLibTorch(o); });
  if (!off.empty()) report["problem"] = off;
  std::vector<Form> forms = {{"LibTorch's causal attention", LibTorch}};
  forms.insert(forms.end(), std::begin(kForms), std::end(kForms));
  std::vector<Form> of_rows = forms;
  if (o.device.is_cuda()) of_rows.insert(of_rows.begin() + 1, kInBlocks);
  const Rows rows(o, o.batch, o.seq_len), long_row(o, 1, o.long_row);
  for (const bool gradients : {false, true})
    report[gradients ? "forward_backward" : "forward"] =
        RowsOf(of_rows, rows, o, gradients, problems);
  report["forward_of_a_row_of_" + std::to_string(o.long_row)] =
      RowsOf(forms, long_row, o, /*gradients=*/false, problems);
  return report;
}

}  // namespace
}  // namespace halflife::bench

int main(int argc, char** argv) {
  halflife::bench::Options options;
  CLI::App app("Softmax attention against LibTorch's, and what patterns cost; prints JSON");
  std::string device = "cpu";
  app.add_option("--device", device, "cpu, or cuda: bf16, exit code 4 without a GPU");
  app.add_option("--batch", options.batch);
  app.add_option("--seq-len", options.seq_len);
  app.add_option("--heads", options.heads);
  app.add_option("--dim", options.dim, "channels of a head");
  app.add_option("--block", options.block, "tokens of a block; a window is two");
  app.add_option("--long", options.long_row, "tokens of the row whose forward is timed besides");
  app.add_option("--rounds", options.rounds);
  app.add_option("--threads", options.threads);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(options.threads);
  // Every call allocates its results. Reusing freed memory makes the benchmark time the loops, not
  // page faults.
  halflife::PrepareHeap();
  return halflife::bench::ExitCodeOf([&] {
    options.device = halflife::bench::FindDevice(device);
    halflife::kernels::cpu::UseInstructionSetOfEnvironment();
    halflife::bench::Problems problems;
    std::cout << halflife::bench::Run(options, problems).dump(2) << "\n";
    problems.ThrowIfAny();
  });
}
