// The delta rule compared with LibTorch's operations in chunks, forward and forward + backward,
// alternating in one run. Each form is first checked against the chunked form in fp64. With
// --lengths, measures the cost per token from 512 to 16,384 tokens instead.
//
//   build/cpu/bench/bench_delta_rule --kind gated_delta_net --batch 2 --seq-len 4096 --heads 8
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/host.h"
#include "eager.h"
#include "kernels/common/chunks/chunk_table.h"
#include "kernels/common/cpu/instruction_set.h"
#include "kernels/delta_rule/delta_rule_args.h"
#include "support/measure.h"
#include "support/program.h"

namespace halflife::bench {
namespace {

using kernels::DeltaDecay;

struct Options {
  std::string kind = "gated_delta_net";
  int64_t batch = 2, seq_len = 4096, heads = 8, dim = 64, chunk_size = kernels::kDeltaChunkSize;
  int rounds = 5, threads = 1;
  bool lengths = false;

  double scale() const { return 1 / std::sqrt(static_cast<double>(dim)); }
  DeltaDecay decay() const {
    if (kind == "delta_net") return DeltaDecay::kNone;
    return kind == "kda" ? DeltaDecay::kPerTokenChannel : DeltaDecay::kPerToken;
  }
};

// Unit keys, beta of 0.1 to 0.9, and decays of 0.9 to 1, as in a model at the start of training.
DeltaOperands MakeOperands(const Options& o, at::ScalarType dtype = at::kFloat) {
  const std::vector<int64_t> rows = {o.batch, o.seq_len, o.heads, o.dim},
                             tokens = {o.batch, o.seq_len, o.heads};
  const auto unit = [](const at::Tensor& x) { return x / x.square().sum(3, true).sqrt(); };
  DeltaOperands in = {.q = unit(at::randn(rows)),
                      .k = unit(at::randn(rows)),
                      .v = at::randn(rows),
                      .log_decay = {},
                      .beta = at::rand(tokens) * 0.8 + 0.1};
  if (o.decay() != DeltaDecay::kNone)
    in.log_decay = at::rand(o.decay() == DeltaDecay::kPerToken ? tokens : rows) * -0.1;
  for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay, &in.beta})
    if (x->defined()) *x = x->to(dtype).requires_grad_();
  return in;
}

kernels::TensorView ViewOf(const at::Tensor& x) {
  kernels::TensorView view;
  if (!x.defined()) return view;
  view = {.data = x.data_ptr(),
          .stride_b = x.stride(0),
          .stride_t = x.stride(1),
          .stride_h = x.stride(2),
          .dtype = DType::kF32};
  return view;
}

// The kernels' calls, with memory that is kept between calls, as an allocator would.
class Ours {
 public:
  Ours(const Options& o, const DeltaOperands& in, const at::Tensor& dout)
      : in_(in),
        dout_(dout),
        out_(at::empty_like(in.v)),
        table_(kernels::MakeChunkTable(
            {.batch = o.batch, .seq_len = o.seq_len, .chunk_size = o.chunk_size})) {
    kernels::DeltaRuleArgs& args = grads_.forward;
    args.batch = static_cast<int>(o.batch);
    args.seq_len = static_cast<int>(o.seq_len);
    args.num_heads = args.num_value_heads = static_cast<int>(o.heads);
    args.head_dim_k = args.head_dim_v = static_cast<int>(o.dim);
    args.decay = o.decay();
    args.scale = o.scale();
    args.q = ViewOf(in.q);
    args.k = ViewOf(in.k);
    args.v = ViewOf(in.v);
    args.out = ViewOf(out_);
    args.log_decay = ViewOf(in.log_decay);
    args.beta = ViewOf(in.beta);
    args.num_sequences = args.batch;
    args.num_chunks = static_cast<int>(table_.chunks.size());
    args.chunks = table_.chunks.data();
    args.sequence_begin = table_.sequence_begin.data();
    checkpoints_ = at::empty({static_cast<int64_t>(DeltaRuleCheckpointBytes(args))},
                             at::TensorOptions(at::kByte));
    for (const at::Tensor& x : in.leaves()) results_.push_back(at::empty_like(x).detach());
    grads_.dout = ViewOf(dout);
    grads_.dq = ViewOf(results_[0]);
    grads_.dk = ViewOf(results_[1]);
    grads_.dv = ViewOf(results_[2]);
    grads_.dbeta = ViewOf(results_[3]);
    if (in.log_decay.defined()) grads_.dlog_decay = ViewOf(results_[4]);
  }
  Ours(const Ours&) = delete;

  void Forward() {
    grads_.forward.checkpoints = nullptr;
    kernels::cpu::DeltaRuleForward(grads_.forward);
  }
  void Both() {
    grads_.forward.checkpoints = checkpoints_.data_ptr();
    kernels::cpu::DeltaRuleForward(grads_.forward);
    kernels::cpu::DeltaRuleBackward(grads_);
  }
  // The output and every gradient.
  std::vector<at::Tensor> Results() {
    Both();
    std::vector<at::Tensor> all = {out_.detach()};
    all.insert(all.end(), results_.begin(), results_.end());
    return all;
  }

 private:
  DeltaOperands in_;
  at::Tensor dout_, out_, checkpoints_;
  std::vector<at::Tensor> results_;
  kernels::ChunkTable table_;
  kernels::DeltaRuleGradArgs grads_;
};

std::vector<at::Tensor> EagerResults(const Options& o, const DeltaOperands& in,
                                     const at::Tensor& dout, int64_t size) {
  std::vector<at::Tensor> results = {EagerDeltaRule(in, o.scale(), size)};
  for (const at::Tensor& grad : torch::autograd::grad({results[0]}, in.leaves(), {dout}))
    results.push_back(grad);
  return results;
}

constexpr int64_t kEagerSizes[] = {16, 32, 64};

void Check(Options o) {
  o.batch = 1, o.seq_len = 256;
  const DeltaOperands in = MakeOperands(o);
  DeltaOperands wide = in;
  for (at::Tensor* x : {&wide.q, &wide.k, &wide.v, &wide.log_decay, &wide.beta})
    if (x->defined()) *x = x->detach().to(at::kDouble).requires_grad_();
  const at::Tensor dout = at::randn(in.v.sizes());
  const auto want = EagerResults(o, wide, dout.to(at::kDouble), 16);
  const auto check = [&](const std::string& name, const std::vector<at::Tensor>& got) {
    for (size_t i = 0; i < want.size(); ++i) {
      const double error = RelativeRms(got[i], want[i].detach());
      HL_CHECK(error < 1e-5, name, ": result ", i, " is off by ", error, " of the form in fp64");
    }
  };
  check("halflife", Ours(o, in, dout).Results());
  for (const int64_t size : kEagerSizes)
    check("eager_chunk_" + std::to_string(size), EagerResults(o, in, dout, size));
}

struct Times {
  std::vector<double> forward_ms, both_ms;
};

nlohmann::ordered_json Compare(const Options& o) {
  Check(o);
  const DeltaOperands in = MakeOperands(o);
  const at::Tensor dout = at::randn(in.v.sizes());
  Ours ours(o, in, dout);
  std::map<std::string, Times> times;
  for (int round = 0; round < o.rounds + 1; ++round) {
    if (round == 1) times.clear();  // The first round is a warm-up.
    times["halflife"].forward_ms.push_back(Milliseconds(at::kCPU, [&] { ours.Forward(); }));
    times["halflife"].both_ms.push_back(Milliseconds(at::kCPU, [&] { ours.Both(); }));
    for (const int64_t size : kEagerSizes) {
      Times& eager = times["eager_chunk_" + std::to_string(size)];
      {
        const c10::AutoGradMode no_grad(false);
        eager.forward_ms.push_back(
            Milliseconds(at::kCPU, [&] { EagerDeltaRule(in, o.scale(), size); }));
      }
      eager.both_ms.push_back(Milliseconds(at::kCPU, [&] { EagerResults(o, in, dout, size); }));
    }
  }
  nlohmann::ordered_json result = {
      {"kind", o.kind},
      {"batch", o.batch},
      {"seq_len", o.seq_len},
      {"heads", o.heads},
      {"dim", o.dim},
      {"chunk_size", o.chunk_size},
      {"threads", o.threads},
      {"instruction_set", kernels::cpu::NameOf(kernels::cpu::InstructionSetInUse())}};
  double best_forward = 1e300, best_both = 1e300;
  for (const auto& [name, time] : times) {
    const double forward = Median(time.forward_ms), both = Median(time.both_ms);
    result[name] = {{"forward_ms", forward}, {"forward_backward_ms", both}};
    if (name == "halflife") continue;
    best_forward = std::min(best_forward, forward), best_both = std::min(best_both, both);
  }
  result["speed_ratio_forward"] = best_forward / Median(times["halflife"].forward_ms);
  result["speed_ratio_forward_backward"] = best_both / Median(times["halflife"].both_ms);
  return result;
}

// Returns nanoseconds per token, forward + backward, for equal numbers of tokens.
nlohmann::ordered_json CompareLengths(Options o) {
  constexpr int64_t kTokens = 16384;
  const std::vector<int64_t> lengths = {512, 2048, 8192, 16384};
  std::map<int64_t, std::vector<double>> times;
  for (int round = 0; round < o.rounds + 1; ++round) {
    if (round == 1) times.clear();
    for (const int64_t seq_len : lengths) {
      o.seq_len = seq_len, o.batch = kTokens / seq_len;
      const DeltaOperands in = MakeOperands(o);
      Ours ours(o, in, at::randn(in.v.sizes()));
      ours.Both();  // touches the memory
      times[seq_len].push_back(Milliseconds(at::kCPU, [&] { ours.Both(); }));
    }
  }
  nlohmann::ordered_json result = {
      {"kind", o.kind}, {"heads", o.heads}, {"dim", o.dim}, {"threads", o.threads}};
  for (const int64_t seq_len : lengths)
    result["ns_a_token"][std::to_string(seq_len)] = Median(times[seq_len]) * 1e6 / kTokens;
  result["longest_over_shortest"] = Median(times[lengths.back()]) / Median(times[lengths.front()]);
  return result;
}

nlohmann::ordered_json Run(const Options& options) {
  HL_CHECK_AS(
      ExitCode::kUsage,
      options.kind == "delta_net" || options.kind == "gated_delta_net" || options.kind == "kda",
      "unknown kind '", options.kind, "'. Use delta_net, gated_delta_net or kda.");
  HL_CHECK_AS(ExitCode::kUsage, options.seq_len % 64 == 0, "--seq-len ", options.seq_len,
              ". Use a multiple of 64, the eager form's largest chunk.");
  return options.lengths ? CompareLengths(options) : Compare(options);
}

}  // namespace
}  // namespace halflife::bench

int main(int argc, char** argv) {
  halflife::bench::Options options;
  CLI::App app("The delta rule against LibTorch's operations; prints JSON");
  app.add_option("--kind", options.kind, "delta_net, gated_delta_net or kda");
  app.add_option("--batch", options.batch);
  app.add_option("--seq-len", options.seq_len, "a multiple of 64");
  app.add_option("--heads", options.heads);
  app.add_option("--dim", options.dim, "channels of a head");
  app.add_option("--chunk-size", options.chunk_size, "tokens, at most 64");
  app.add_option("--rounds", options.rounds);
  app.add_option("--threads", options.threads);
  app.add_flag("--lengths", options.lengths, "cost of a token at 512 to 16,384 tokens instead");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(options.threads);
  halflife::PrepareHeap();  // For every form, as in a training run.
  return halflife::bench::ExitCodeOf([&] {
    halflife::kernels::cpu::UseInstructionSetOfEnvironment();
    std::cout << halflife::bench::Run(options).dump(2) << "\n";
  });
}
