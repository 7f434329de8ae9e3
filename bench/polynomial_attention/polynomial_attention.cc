// Polynomial attention: checked against the fp64 kernel, then timed, forward and forward +
// backward, alternating with forms in LibTorch's operations in one run.
//
//   build/cpu/bench/bench_polynomial_attention --kernel based --seq-len 4096
//   build/cpu/bench/bench_polynomial_attention --lengths   # cost per token, 512 to 16,384 tokens
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "eager.h"
#include "kernels/common/cpu/instruction_set.h"
#include "support/comparison.h"
#include "support/measure.h"

namespace halflife::bench {
namespace {

using kernels::PolynomialForm;
using ops::PolynomialAttention;
using ops::PolynomialAttentionConfig;

struct Options {
  std::string kernel = "based", form = "shape";
  int64_t batch = 2, seq_len = 4096, heads = 8, dim = 16, dim_v = 64;
  int rounds = 7, threads = 1;
  bool lengths = false, skip_eager = false, skip_quadratic = false;

  PolynomialAttentionConfig Config() const {
    HL_CHECK_AS(ExitCode::kUsage, kernel == "based" || kernel == "rebased", "kernel ", kernel,
                ". Use based or rebased.");
    HL_CHECK_AS(ExitCode::kUsage, form == "shape" || form == "quadratic" || form == "chunked",
                "form ", form, ". Use shape, quadratic or chunked.");
    return {.scale = 1 / std::sqrt(static_cast<double>(dim)),
            .weights = kernel == "based" ? kernels::PolynomialWeights{1, 1, 0.5}
                                         : kernels::PolynomialWeights{0, 0, 1},
            .want_final_state = false,
            .form = form == "shape"       ? PolynomialForm::kByShape
                    : form == "quadratic" ? PolynomialForm::kQuadratic
                                          : PolynomialForm::kChunked};
  }
};

struct Problem {
  at::Tensor q, k, v, dout;

  explicit Problem(const Options& o)
      : q(at::randn({o.batch, o.seq_len, o.heads, o.dim}).requires_grad_()),
        k(at::randn({o.batch, o.seq_len, o.heads, o.dim}).requires_grad_()),
        v(at::randn({o.batch, o.seq_len, o.heads, o.dim_v}).requires_grad_()),
        dout(at::randn({o.batch, o.seq_len, o.heads, o.dim_v})) {}
};

using Form = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

Form Ours(const Options& o) {
  return [config = o.Config()](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return PolynomialAttention({.q = q, .k = k, .v = v}, config).out;
  };
}
Form Eager(const Options& o, const EagerForm& form) {
  return
      [config = o.Config(), form](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
        return RunEager(form, q, k, v, config);
      };
}

void TimeForm(const Form& form, const Problem& p, Times& times) {
  TimeOnce([&] { return form(p.q, p.k, p.v); }, {p.q, p.k, p.v}, p.dout, times);
}

// Returns the largest error of out, dq, dk and dv compared with the same form in fp64.
double WorstError(const Form& form, const Form& exact, const Problem& p) {
  const auto run = [&p](const Form& f, at::ScalarType dtype) {
    std::vector<at::Tensor> x;
    for (const at::Tensor& leaf : {p.q, p.k, p.v})
      x.push_back(leaf.detach().to(dtype).requires_grad_());
    std::vector<at::Tensor> results = {f(x[0], x[1], x[2])};
    for (const at::Tensor& grad : torch::autograd::grad(results, x, {p.dout.to(dtype)}))
      results.push_back(grad);
    return results;
  };
  const auto got = run(form, at::kFloat), want = run(exact, at::kDouble);
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i)
    worst = Worse(worst, RelativeRms(got[i].detach(), want[i].detach()));
  return worst;
}

nlohmann::json Compare(const Options& o) {
  const Problem p(o);
  std::map<std::string, EagerForm> eager_forms;
  if (!o.skip_eager) {
    eager_forms = {{"eager_chunk_64", {.chunk_size = 64}},
                   {"eager_chunk_128", {.chunk_size = 128}},
                   {"eager_chunk_256", {.chunk_size = 256}},
                   {"eager_packed_chunk_128", {.chunk_size = 128, .packed = true}}};
    if (!o.skip_quadratic) eager_forms["eager_quadratic"] = {};
  }
  Options small = o;  // The quadratic form in fp64 is slow.
  small.seq_len = std::min<int64_t>(o.seq_len, 512), small.form = "chunked";
  const Problem sample(small);
  const double error = WorstError(Ours(small), Eager(small, {}), sample);
  HL_CHECK(error < 1e-4, "the kernel is off by ", error);
  Times ours;
  std::map<std::string, Times> eager;
  for (int round = 0; round < o.rounds + 1; ++round) {
    if (round == 1) ours = {}, eager.clear();  // The first round is a warm-up.
    TimeForm(Ours(o), p, ours);
    for (const auto& [name, form] : eager_forms) TimeForm(Eager(o, form), p, eager[name]);
  }
  nlohmann::json result = {
      {"kernel", o.kernel},
      {"form", o.form},
      {"batch", o.batch},
      {"seq_len", o.seq_len},
      {"heads", o.heads},
      {"dim", o.dim},
      {"dim_v", o.dim_v},
      {"threads", o.threads},
      {"instruction_set", kernels::cpu::NameOf(kernels::cpu::InstructionSetInUse())},
      {"max_error", error}};
  SetMedians(result["halflife"], ours);
  for (const auto& [name, times] : eager) SetMedians(result[name], times);
  SetSpeedRatios(result, ours, eager);
  return result;
}

nlohmann::json CompareLengths(Options o) {
  constexpr int64_t kTokens = 16384;
  nlohmann::json result = {{"kernel", o.kernel}, {"dim", o.dim}, {"dim_v", o.dim_v}};
  const auto time = [&](int64_t seq_len, Times& times) {
    o.seq_len = seq_len, o.batch = kTokens / seq_len;
    TimeForm(Ours(o), Problem(o), times);
  };
  SetCostsByLength(result, {512, 1024, 4096, 16384}, o.rounds,
                   static_cast<double>(kTokens * o.heads), time);
  return result;
}

}  // namespace
}  // namespace halflife::bench

int main(int argc, char** argv) {
  halflife::bench::Options options;
  CLI::App app("Polynomial attention against LibTorch's operations; prints JSON");
  app.add_option("--kernel", options.kernel, "based or rebased");
  app.add_option("--form", options.form, "of ours: shape (the plan's choice), quadratic, chunked");
  app.add_option("--batch", options.batch);
  app.add_option("--seq-len", options.seq_len, "with LibTorch's forms, a multiple of 256");
  app.add_option("--heads", options.heads);
  app.add_option("--dim", options.dim, "of q and k of a head");
  app.add_option("--dim-v", options.dim_v, "of v of a head");
  app.add_option("--rounds", options.rounds);
  app.add_option("--threads", options.threads);
  app.add_flag("--lengths", options.lengths, "cost of a token at 512 to 16,384 tokens instead");
  app.add_flag("--skip-eager", options.skip_eager);
  app.add_flag("--skip-quadratic", options.skip_quadratic, "which takes gigabytes of memory");
  CLI11_PARSE(app, argc, argv);
  return halflife::bench::PrintReport(options.threads, [&] {
    return (options.lengths ? halflife::bench::CompareLengths(options)
                            : halflife::bench::Compare(options))
        .dump(2);
  });
}
