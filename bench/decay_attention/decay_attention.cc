// Decay attention on the CPU: checked against the fp64 recurrence, then timed, forward and forward + backward, against the
// form made of LibTorch's operations and against the machine's own matmul, all in one run and in turn.
//
//   build/cpu/bench/bench_decay_attention --kind per_head --batch 2 --seq-len 4096 --heads 8 --dim 64
//   build/cpu/bench/bench_decay_attention --kind per_head --lengths     # cost of a token from 1,024 to 65,536 tokens
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/error.h"
#include "eager.h"
#include "kernels/decay_attention/decay_attention.h"

namespace halflife::bench {
namespace {

struct Options {
  std::string kind = "per_head";
  int64_t batch = 2, seq_len = 4096, heads = 8, dim = 64;
  int rounds = 7, threads = 1;
  bool lengths = false, skip_eager = false;
};

struct Problem {
  at::Tensor q, k, v, log_decay, dout;
  double scale;

  explicit Problem(const Options& o) : scale(1 / std::sqrt(static_cast<double>(o.dim))) {
    const auto heads = [&] { return at::randn({o.batch, o.seq_len, o.heads, o.dim}); };
    q = heads().requires_grad_(), k = heads().requires_grad_(), v = heads().requires_grad_();
    dout = heads();
    if (o.kind == "per_head") {
      log_decay = at::log1p(-at::exp2(-5 - at::arange(o.heads, at::kFloat)));
    } else if (o.kind == "per_token") {
      log_decay = (at::rand({o.batch, o.seq_len, o.heads}) * -0.2).requires_grad_();
    } else {
      HL_CHECK_AS(ExitCode::kUsage, o.kind == "per_channel", "unknown kind '", o.kind,
                  "'; per_head, per_token and per_channel would work");
      log_decay = (at::rand({o.batch, o.seq_len, o.heads, o.dim}) * -0.2).requires_grad_();
    }
  }
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all = {q, k, v};
    if (log_decay.requires_grad()) all.push_back(log_decay);
    return all;
  }
};

using Form = std::function<at::Tensor(const Problem&)>;

at::Tensor Ours(const Problem& p) {
  return kernels::DecayAttention({.q = p.q,
                                  .k = p.k,
                                  .v = p.v,
                                  .log_decay = p.log_decay,
                                  .chunks = {},
                                  .initial_state = {}},
                                 {.scale = p.scale})
      .out;
}

struct Times {
  std::vector<double> forward_ms, both_ms;
};

void TimeOnce(const Form& form, const Problem& p, Times& times) {
  {
    const c10::AutoGradMode no_grad(false);
    const Stopwatch watch;
    form(p);
    times.forward_ms.push_back(watch.Seconds() * 1e3);
  }
  const Stopwatch watch;
  torch::autograd::grad({form(p)}, p.leaves(), {p.dout});
  times.both_ms.push_back(watch.Seconds() * 1e3);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double MatmulGflops() {
  constexpr int64_t kSize = 1536;
  const at::Tensor a = at::randn({kSize, kSize}), b = at::randn({kSize, kSize});
  at::Tensor c = at::empty({kSize, kSize});
  const Stopwatch watch;
  at::mm_out(c, a, b);
  return 2.0 * kSize * kSize * kSize / watch.Seconds() * 1e-9;
}

// Multiply-adds x 2 of the chunked algorithm at C = 64, whole squares counted.
double Flops(const Options& o, bool backward) {
  const double C = 64, K = static_cast<double>(o.dim), V = K;
  const double forward = 2 * C * (K + V) + 4 * K * V;
  const double both = forward + 2 * C * (3 * K + 2 * V) + 10 * K * V;
  return static_cast<double>(o.batch * o.seq_len * o.heads) * (backward ? both : forward);
}

// The recurrence in fp64 on two heads of the first tokens; a wrong kernel is not worth a time.
double WorstError(const Options& options) {
  Options small = options;
  small.batch = 1, small.heads = 2, small.seq_len = std::min<int64_t>(options.seq_len, 300);
  const Problem p(small);
  const at::Tensor out = Ours(p).detach().to(at::kDouble);
  const auto wide = [](const at::Tensor& x) { return x.detach().to(at::kDouble); };
  const at::Tensor q = wide(p.q), k = wide(p.k), v = wide(p.v);
  at::Tensor decay = wide(p.log_decay).exp();
  at::Tensor state = at::empty({2, small.dim, small.dim}, at::kDouble).zero_();
  double worst = 0, largest = 0;
  for (int64_t t = 0; t < small.seq_len; ++t) {
    at::Tensor a = decay.dim() == 1 ? decay : decay.select(1, t)[0];  // [H] or [H, K]
    state = state * (a.dim() == 1 ? a.view({2, 1, 1}) : a.unsqueeze(2)) +
            k[0][t].unsqueeze(2) * v[0][t].unsqueeze(1);
    const at::Tensor want = ((q[0][t] * p.scale).unsqueeze(2) * state).sum(1);
    worst = std::max(worst, (out[0][t] - want).abs().max().item<double>());
    largest = std::max(largest, want.abs().max().item<double>());
  }
  return worst / largest;
}

struct EagerChoice {
  std::string name;
  int64_t chunk_size, sub_chunk;
};
const EagerChoice kEagerChoices[] = {
    {"eager_chunk_32", 32, 0}, {"eager_chunk_64", 64, 0}, {"eager_safe_chunk_32", 32, 8}};

EagerForm MakeEager(const Options& o, const Problem& p, const EagerChoice& choice) {
  const EagerShape shape = {
      .seq_len = o.seq_len, .chunk_size = choice.chunk_size, .sub_chunk = choice.sub_chunk};
  if (o.kind == "per_head") return MakeEagerPerHead(shape, p.log_decay, p.scale);
  HL_CHECK_AS(ExitCode::kUsage, o.kind == "per_channel", "no LibTorch form of kind ", o.kind,
              "; use --skip-eager");
  return MakeEagerPerChannel(shape, p.scale);
}

nlohmann::json Compare(const Options& o) {
  const double error = WorstError(o);
  HL_CHECK(error < 1e-5, "the kernel is off by ", error, " of its largest output");
  const Problem p(o);
  Times ours;
  std::map<std::string, Times> eager;  // the best of them is what counts
  std::vector<double> matmul_gflops;
  for (int round = 0; round < o.rounds + 1; ++round) {
    if (round == 1) ours = {}, eager.clear(), matmul_gflops.clear();  // the first is a warm-up
    TimeOnce(Ours, p, ours);
    matmul_gflops.push_back(MatmulGflops());
    if (o.skip_eager) continue;
    for (const EagerChoice& choice : kEagerChoices) {
      if (o.kind == "per_head" && choice.sub_chunk != 0) continue;
      const EagerForm form = MakeEager(o, p, choice);
      TimeOnce([&](const Problem& x) { return form(x.q, x.k, x.v, x.log_decay); }, p,
               eager[choice.name]);
    }
  }
  const double peak = Median(matmul_gflops);
  const auto report = [&](const Times& times) -> nlohmann::json {
    const double forward = Median(times.forward_ms), both = Median(times.both_ms);
    return {{"forward_ms", forward},
            {"forward_backward_ms", both},
            {"forward_gflops", Flops(o, false) / forward * 1e-6},
            {"forward_backward_gflops", Flops(o, true) / both * 1e-6},
            {"forward_share_of_matmul", Flops(o, false) / forward * 1e-6 / peak},
            {"forward_backward_share_of_matmul", Flops(o, true) / both * 1e-6 / peak}};
  };
  nlohmann::json result = {
      {"kind", o.kind},     {"batch", o.batch},      {"seq_len", o.seq_len},
      {"heads", o.heads},   {"dim", o.dim},          {"threads", o.threads},
      {"max_error", error}, {"matmul_gflops", peak}, {"halflife", report(ours)}};
  double best_forward = 1e300, best_both = 1e300;
  for (const auto& [name, times] : eager) {
    result[name] = report(times);
    best_forward = std::min(best_forward, Median(times.forward_ms));
    best_both = std::min(best_both, Median(times.both_ms));
  }
  if (!eager.empty()) {
    result["speed_ratio_forward"] = best_forward / Median(ours.forward_ms);
    result["speed_ratio_forward_backward"] = best_both / Median(ours.both_ms);
  }
  return result;
}

// Nanoseconds a token and head, forward + backward, at equal numbers of tokens.
nlohmann::json CompareLengths(const Options& options) {
  const std::vector<int64_t> lengths = {1024, 4096, 16384, 65536};
  std::map<int64_t, Times> times;
  for (int round = 0; round < options.rounds; ++round) {
    for (const int64_t seq_len : lengths) {
      Options o = options;
      o.seq_len = seq_len;
      o.batch = 65536 / seq_len;
      TimeOnce(Ours, Problem(o), times[seq_len]);
    }
  }
  nlohmann::json result = {{"kind", options.kind}, {"heads", options.heads}, {"dim", options.dim}};
  const double tokens = 65536.0 * static_cast<double>(options.heads);
  for (const int64_t seq_len : lengths)
    result["ns_a_token_head"][std::to_string(seq_len)] =
        Median(times[seq_len].both_ms) * 1e6 / tokens;
  result["longest_over_shortest"] = Median(times[65536].both_ms) / Median(times[1024].both_ms);
  return result;
}

}  // namespace
}  // namespace halflife::bench

int main(int argc, char** argv) {
  halflife::bench::Options options;
  CLI::App app("Decay attention on the CPU against LibTorch's operations; prints JSON");
  app.add_option("--kind", options.kind, "per_head, per_token or per_channel");
  app.add_option("--batch", options.batch);
  app.add_option("--seq-len", options.seq_len, "a multiple of 64");
  app.add_option("--heads", options.heads);
  app.add_option("--dim", options.dim, "K and V of a head");
  app.add_option("--rounds", options.rounds);
  app.add_option("--threads", options.threads);
  app.add_flag("--lengths", options.lengths, "cost of a token at 1,024 to 65,536 tokens instead");
  app.add_flag("--skip-eager", options.skip_eager);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(options.threads);
  std::cout << (options.lengths ? halflife::bench::CompareLengths(options)
                                : halflife::bench::Compare(options))
                   .dump(2)
            << "\n";
}
