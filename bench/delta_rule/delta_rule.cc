// The delta rule compared with LibTorch's operations in chunks, forward and forward + backward,
// alternating in one run. Each form is first checked against the chunked form in fp64. With
// --lengths, measures the cost per token from 512 to 16,384 tokens instead. On a GPU, only our
// kernels are timed; compare_fla.py compares them with other programs.
//
//   build/cpu/bench/bench_delta_rule --kind gated_delta_net --batch 2 --seq-len 4096 --heads 8
#include <ATen/TensorOperators.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "eager.h"
#include "kernels/common/cpu/instruction_set.h"
#include "kernels/delta_rule/delta_rule_args.h"
#include "ops/delta_rule/delta_rule.h"
#include "ops/sequence/sequence_chunks.h"
#include "support/comparison.h"
#include "support/measure.h"
#include "support/operation_times.h"

namespace halflife::bench {
namespace {

using kernels::DeltaDecay;

struct Options {
  std::string kind = "gated_delta_net", device = "cpu";
  int64_t batch = 2, seq_len = 4096, heads = 8, dim = 64;
  int rounds = 0, threads = 1;
  bool lengths = false;

  double scale() const { return 1 / std::sqrt(static_cast<double>(dim)); }
  DeltaDecay decay() const {
    if (kind == "delta_net") return DeltaDecay::kNone;
    return kind == "kda" ? DeltaDecay::kPerTokenChannel : DeltaDecay::kPerToken;
  }
};

// Draws unit keys, beta of 0.1 to 0.9, and decays of 0.9 to 1, as in a model at the start of
// training. On a GPU, q, k and v are bf16.
DeltaOperands MakeOperands(const Options& o, at::Device device) {
  const std::vector<int64_t> rows = {o.batch, o.seq_len, o.heads, o.dim},
                             tokens = {o.batch, o.seq_len, o.heads};
  const auto wide = at::TensorOptions(device).dtype(at::kFloat);
  const auto unit = [](const at::Tensor& x) { return x / x.square().sum(3, true).sqrt(); };
  DeltaOperands in = {.q = unit(at::randn(rows, wide)),
                      .k = unit(at::randn(rows, wide)),
                      .v = at::randn(rows, wide),
                      .log_decay = {},
                      .beta = at::rand(tokens, wide) * 0.8 + 0.1};
  if (o.decay() != DeltaDecay::kNone)
    in.log_decay = at::rand(o.decay() == DeltaDecay::kPerToken ? tokens : rows, wide) * -0.1;
  for (at::Tensor* x : {&in.q, &in.k, &in.v})
    if (device.is_cuda()) *x = x->to(at::kBFloat16);
  for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay, &in.beta})
    if (x->defined()) x->requires_grad_();
  return in;
}

// The operation that the mixers call.
class Ours {
 public:
  Ours(const Options& o, at::Device device)
      : scale_(o.scale()),
        // Made once for a batch, as in training.
        chunks_(ops::MakeSequenceChunks({.batch = o.batch, .seq_len = o.seq_len}, device)) {}

  // `leaves` is in the order of DeltaOperands::leaves().
  at::Tensor operator()(const Tensors& leaves) const {
    return ops::DeltaRule({.q = leaves[0],
                           .k = leaves[1],
                           .v = leaves[2],
                           .log_decay = leaves.size() > 4 ? leaves[4] : at::Tensor(),
                           .beta = leaves[3],
                           .chunks = chunks_},
                          scale_)
        .out;
  }

 private:
  double scale_;
  std::shared_ptr<const ops::SequenceChunks> chunks_;
};

Tensors EagerResults(const Options& o, const DeltaOperands& in, const at::Tensor& dout,
                     int64_t size) {
  Tensors results = {EagerDeltaRule(in, o.scale(), size)};
  for (const at::Tensor& grad : torch::autograd::grad({results[0]}, in.leaves(), {dout}))
    results.push_back(grad);
  return results;
}

constexpr int64_t kEagerSizes[] = {16, 32, 64};

DeltaOperands OnCpuInFp64(DeltaOperands in) {
  for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay, &in.beta})
    if (x->defined()) *x = x->detach().to(at::kCPU, at::kDouble).requires_grad_();
  return in;
}

// Checks our results, and on the CPU those of the eager forms. Returns the largest error of ours.
double Check(Options o, at::Device device) {
  o.batch = 1, o.seq_len = 256, o.heads = std::min<int64_t>(o.heads, 2);
  // On a GPU, operands and results are rounded to bf16, and so are values inside a chunk.
  const double allowed = device.is_cuda() ? 3e-2 : 1e-5;
  const DeltaOperands in = MakeOperands(o, device);
  const at::Tensor dout = at::randn(in.v.sizes(), in.v.options().requires_grad(false));
  const auto want = EagerResults(o, OnCpuInFp64(in), dout.to(at::kCPU, at::kDouble), 16);
  double worst = 0;
  const auto check = [&](const std::string& name, const Tensors& got) {
    for (size_t i = 0; i < want.size(); ++i) {
      const double error = RelativeRms(got[i], want[i].detach());
      HL_CHECK(error < allowed, name, ": result ", i, " is off by ", error, " of the form in fp64");
      worst = Worse(worst, error);
    }
  };
  check("halflife", ResultsOf(Ours(o, device), in.leaves(), dout));
  const double of_ours = worst;
  if (device.is_cuda()) return of_ours;
  for (const int64_t size : kEagerSizes)
    check("eager_chunk_" + std::to_string(size), EagerResults(o, in, dout, size));
  return of_ours;
}

nlohmann::ordered_json CompareOnCuda(const Options& o) {
  const double error = Check(o, at::kCUDA);
  nlohmann::ordered_json result =
      TimeOnCuda({.run = Ours(o, at::kCUDA),
                  .make_operands = [&] { return MakeOperands(o, at::kCUDA).leaves(); },
                  .dout = at::randn({o.batch, o.seq_len, o.heads, o.dim},
                                    at::TensorOptions(at::kCUDA).dtype(at::kBFloat16))},
                 o.rounds);
  result.update({{"kind", o.kind},
                 {"batch", o.batch},
                 {"seq_len", o.seq_len},
                 {"heads", o.heads},
                 {"dim", o.dim},
                 {"dtype", "bf16"},
                 {"max_error", error}});
  return result;
}

nlohmann::ordered_json Compare(const Options& o) {
  const double error = Check(o, at::kCPU);
  const DeltaOperands in = MakeOperands(o, at::kCPU);
  const at::Tensor dout = at::randn(in.v.sizes());
  const Ours ours(o, at::kCPU);
  std::map<std::string, Times> times;
  for (int round = 0; round < o.rounds + 1; ++round) {
    if (round == 1) times.clear();  // The first round is a warm-up.
    TimeOnce([&] { return ours(in.leaves()); }, in.leaves(), dout, times["halflife"]);
    for (const int64_t size : kEagerSizes)
      TimeOnce([&] { return EagerDeltaRule(in, o.scale(), size); }, in.leaves(), dout,
               times["eager_chunk_" + std::to_string(size)]);
  }
  nlohmann::ordered_json result = {
      {"kind", o.kind},
      {"batch", o.batch},
      {"seq_len", o.seq_len},
      {"heads", o.heads},
      {"dim", o.dim},
      {"max_error", error},
      {"threads", o.threads},
      {"instruction_set", kernels::cpu::NameOf(kernels::cpu::InstructionSetInUse())}};
  for (const auto& [name, time] : times) SetMedians(result[name], time);
  const Times of_ours = times.extract("halflife").mapped();
  SetSpeedRatios(result, of_ours, times);
  return result;
}

nlohmann::ordered_json CompareLengths(Options o) {
  constexpr int64_t kTokens = 16384;
  nlohmann::ordered_json result = {
      {"kind", o.kind}, {"heads", o.heads}, {"dim", o.dim}, {"threads", o.threads}};
  const auto time = [&](int64_t seq_len, Times& times) {
    o.seq_len = seq_len, o.batch = kTokens / seq_len;
    const Tensors in = MakeOperands(o, at::kCPU).leaves();
    const Ours ours(o, at::kCPU);
    TimeOnce([&] { return ours(in); }, in, at::randn(in[2].sizes()), times);
  };
  SetCostsByLength(result, {512, 2048, 8192, 16384}, o.rounds, kTokens, time);
  return result;
}

nlohmann::ordered_json Run(Options options) {
  HL_CHECK_AS(
      ExitCode::kUsage,
      options.kind == "delta_net" || options.kind == "gated_delta_net" || options.kind == "kda",
      "unknown kind '", options.kind, "'. Use delta_net, gated_delta_net or kda.");
  HL_CHECK_AS(ExitCode::kUsage, options.seq_len % 64 == 0, "--seq-len ", options.seq_len,
              ". Use a multiple of 64, the eager form's largest chunk.");
  const bool cuda = FindDevice(options.device).is_cuda();
  if (options.rounds == 0) options.rounds = cuda ? 50 : 5;
  if (cuda) return CompareOnCuda(options);
  return options.lengths ? CompareLengths(options) : Compare(options);
}

}  // namespace
}  // namespace halflife::bench

int main(int argc, char** argv) {
  halflife::bench::Options options;
  CLI::App app("The delta rule against LibTorch's operations; prints JSON");
  app.add_option("--device", options.device, "cpu, or cuda: bf16, exit code 4 without a GPU");
  app.add_option("--kind", options.kind, "delta_net, gated_delta_net or kda");
  app.add_option("--batch", options.batch);
  app.add_option("--seq-len", options.seq_len, "a multiple of 64");
  app.add_option("--heads", options.heads);
  app.add_option("--dim", options.dim, "channels of a head");
  app.add_option("--rounds", options.rounds, "5 on the CPU, 50 on a GPU");
  app.add_option("--threads", options.threads);
  app.add_flag("--lengths", options.lengths, "cost of a token at 512 to 16,384 tokens instead");
  CLI11_PARSE(app, argc, argv);
  return halflife::bench::PrintReport(options.threads,
                                      [&] { return halflife::bench::Run(options).dump(2); });
}
