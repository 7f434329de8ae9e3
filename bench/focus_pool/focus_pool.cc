// Focus pooling, forward and backward, compared with a form in LibTorch's operations: cumulative
// sums of exp(log_weight) u and exp(log_weight), minus copies of themselves that are shifted by the
// window. Both are checked against that form in fp64 and then timed alternately. Also measures the
// cost per token over windows and lengths, which should be constant, and LibTorch's fused causal
// attention on the same rows, which a pool of values with one weight per token replaces.
//
//   build/cpu/bench/bench_focus_pool --batch 2 --seq-len 4096 --heads 8 --dim 64
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "kernels/common/cpu/instruction_set.h"
#include "ops/focus_pool/focus_pool.h"
#include "support/comparison.h"
#include "support/measure.h"

namespace halflife::bench {
namespace {

using Tensors = std::vector<at::Tensor>;

// Sums of up to T positive terms in two levels. The cumulative form in fp32 is less accurate.
constexpr double kMaxError = 5e-6;

struct Options {
  int64_t batch = 2, seq_len = 4096, heads = 8, dim = 64;
  int rounds = 7, threads = 1;
  std::vector<int64_t> attention_lengths;
};

struct Operands {
  at::Tensor log_weight, u, dout;
  explicit Operands(const Options& o)
      : log_weight((at::rand({o.batch, o.seq_len, o.heads}) * 2 - 1).requires_grad_()),
        u(at::randn({o.batch, o.seq_len, o.heads, o.dim}).requires_grad_()),
        dout(at::randn({o.batch, o.seq_len, o.heads, o.dim})) {}
  Operands Wide() const {
    Operands wide = *this;
    for (at::Tensor* x : {&wide.log_weight, &wide.u, &wide.dout})
      *x = x->detach().to(at::kDouble).requires_grad_(x->requires_grad());
    return wide;
  }
};

// Returns sums over the last `window` tokens, or over all tokens without a window. x is [B, T,
// ...].
at::Tensor WindowSums(const at::Tensor& x, int64_t window) {
  const at::Tensor sums = x.cumsum(1);
  const int64_t seq_len = x.size(1);
  if (window == 0 || window >= seq_len) return sums;
  const at::Tensor rest =
      sums.narrow(1, window, seq_len - window) - sums.narrow(1, 0, seq_len - window);
  return at::cat({sums.narrow(1, 0, window), rest}, 1);
}
at::Tensor Eager(const Operands& x, int64_t window) {
  const at::Tensor weight = x.log_weight.exp().unsqueeze(3);
  return WindowSums(weight * x.u, window) / WindowSums(weight, window);
}
at::Tensor Ours(const Operands& x, int64_t window) {
  return ops::FocusPool({.log_weight = x.log_weight, .u = x.u}, {.window = window}).out;
}

template <typename Form>
Tensors ForwardBackward(const Form& form, const Operands& x, int64_t window) {
  const at::Tensor out = form(x, window);
  Tensors results = torch::autograd::grad({out}, {x.log_weight, x.u}, {x.dout});
  results.push_back(out.detach());
  return results;
}

double WorstError(const Tensors& got, const Tensors& want) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i)
    worst = Worse(worst, RelativeRms(got[i], want[i].detach()));
  return worst;
}

nlohmann::ordered_json Compare(const Options& o, int64_t window) {
  const Operands x(o);
  const Tensors want = ForwardBackward(Eager, x.Wide(), window);
  const double error = WorstError(ForwardBackward(Ours, x, window), want);
  HL_CHECK(error <= kMaxError, "window ", window, ": off by ", error, "; ", kMaxError,
           " is allowed");
  std::vector<double> ours, eager, ratios;
  for (int i = 0; i < o.rounds; ++i) {
    ours.push_back(Milliseconds(at::kCPU, [&] { ForwardBackward(Ours, x, window); }));
    eager.push_back(Milliseconds(at::kCPU, [&] { ForwardBackward(Eager, x, window); }));
    ratios.push_back(eager.back() / ours.back());
  }
  return {{"window", window},
          {"ms", Median(ours)},
          {"eager_ms", Median(eager)},
          {"speedup", Median(ratios)},
          {"error", error},
          {"eager_error", WorstError(ForwardBackward(Eager, x, window), want)}};
}

// Returns nanoseconds per token, head and channel of alternating shapes, for equal numbers of
// tokens.
nlohmann::ordered_json TokenCosts(Options o,
                                  const std::vector<std::pair<int64_t, int64_t>>& shapes) {
  constexpr int64_t kTokens = 16384;
  std::vector<Operands> operands;
  for (const auto& [seq_len, window] : shapes) {
    o.seq_len = seq_len, o.batch = kTokens / seq_len;
    operands.emplace_back(o);
  }
  std::vector<std::vector<double>> times(shapes.size());
  for (int i = 0; i <= o.rounds; ++i)
    for (size_t s = 0; s < shapes.size(); ++s) {
      const double ms =
          Milliseconds(at::kCPU, [&] { ForwardBackward(Ours, operands[s], shapes[s].second); });
      if (i > 0) times[s].push_back(ms);  // Memory is cold in the first round.
    }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (size_t s = 0; s < shapes.size(); ++s) {
    const auto elements = static_cast<double>(kTokens * o.heads * o.dim);
    rows.push_back({{"seq_len", shapes[s].first},
                    {"window", shapes[s].second},
                    {"ns_per_element", Median(times[s]) * 1e6 / elements}});
  }
  return rows;
}

// Compares the times of pooling one row per length over all its tokens with attention of as many
// heads and channels.
nlohmann::ordered_json AgainstAttention(Options o, const std::vector<int64_t>& lengths) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  o.batch = 1;
  for (const int64_t seq_len : lengths) {
    o.seq_len = seq_len;
    const Operands x(o);
    const auto qkv = [&] {
      return at::randn({1, o.heads, seq_len, o.dim}).requires_grad_();  // [B, H, T, D]
    };
    const at::Tensor q = qkv(), k = qkv(), v = qkv(), dout = at::randn_like(q);
    std::vector<double> ours, attention, ratios;
    const int rounds = seq_len > 4096 ? 1 : 3;
    for (int i = 0; i <= rounds; ++i) {
      const double pool = Milliseconds(at::kCPU, [&] { ForwardBackward(Ours, x, 0); });
      const double softmax = Milliseconds(at::kCPU, [&] {
        const at::Tensor y =
            at::scaled_dot_product_attention(q, k, v, {}, /*dropout_p=*/0, /*is_causal=*/true);
        torch::autograd::grad({y}, {q, k, v}, {dout});
      });
      if (i == 0) continue;  // Memory is cold.
      ours.push_back(pool), attention.push_back(softmax), ratios.push_back(softmax / pool);
    }
    rows.push_back({{"seq_len", seq_len},
                    {"ms", Median(ours)},
                    {"attention_ms", Median(attention)},
                    {"speedup", Median(ratios)}});
  }
  return rows;
}

nlohmann::ordered_json Run(const Options& o) {
  nlohmann::ordered_json report = {
      {"batch", o.batch},
      {"seq_len", o.seq_len},
      {"heads", o.heads},
      {"dim", o.dim},
      {"threads", o.threads},
      {"instruction_set", kernels::cpu::NameOf(kernels::cpu::InstructionSetInUse())}};
  for (const int64_t window : {int64_t{4}, int64_t{64}, int64_t{0}})
    report["against_eager"].push_back(Compare(o, window));
  report["over_windows"] =
      TokenCosts(o, {{o.seq_len, 128}, {o.seq_len, 256}, {o.seq_len, 1024}, {o.seq_len, 0}});
  report["over_lengths"] =
      TokenCosts(o, {{512, 128}, {2048, 128}, {4096, 128}, {16384, 128}, {512, 0}, {16384, 0}});
  if (!o.attention_lengths.empty())
    report["against_attention"] = AgainstAttention(o, o.attention_lengths);
  return report;
}

}  // namespace
}  // namespace halflife::bench

int main(int argc, char** argv) {
  halflife::bench::Options options;
  CLI::App app("Focus pooling against LibTorch's cumulative sums; prints JSON");
  app.add_option("--batch", options.batch);
  app.add_option("--seq-len", options.seq_len);
  app.add_option("--heads", options.heads);
  app.add_option("--dim", options.dim, "channels of a head");
  app.add_option("--rounds", options.rounds);
  app.add_option("--threads", options.threads);
  app.add_option("--attention", options.attention_lengths,
                 "lengths at which causal attention is timed, too, such as 2048 8192");
  CLI11_PARSE(app, argc, argv);
  return halflife::bench::PrintReport(options.threads,
                                      [&] { return halflife::bench::Run(options).dump(2); });
}
