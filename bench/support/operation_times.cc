#include "support/operation_times.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdint>

#include "support/measure.h"

namespace halflife::bench {
namespace {

constexpr int kWarmUps = 10;

double BytesOf(const Tensors& tensors) {
  double bytes = 0;
  for (const at::Tensor& x : tensors) bytes += static_cast<double>(x.nbytes());
  return bytes;
}

// Returns at least two sets of operands, and so many that none is still in the cache when it is
// used again.
std::vector<Tensors> MakeSets(const DifferentiableOperation& operation) {
  std::vector<Tensors> sets = {operation.make_operands()};
  const double wanted = 2.0 * static_cast<double>(CacheBytes(at::kCUDA)) / BytesOf(sets[0]);
  const auto count = static_cast<size_t>(std::clamp(wanted, 2.0, 64.0));
  while (sets.size() < count) sets.push_back(operation.make_operands());
  return sets;
}

// `bytes`: those that every schedule moves.
nlohmann::ordered_json Report(const std::vector<double>& ms, const Timer& timer, double bytes,
                              double copied) {
  const double rate = bytes / Median(ms) * 1e-6;
  return {{"ms", Median(ms)},
          {"ms_p10", Quantile(ms, 0.1)},
          {"ms_p90", Quantile(ms, 0.9)},
          {"late_share", timer.late_share()},
          {"gb_per_s", rate},
          {"share_of_memory_roofline", rate / copied}};
}

}  // namespace

Tensors ResultsOf(const std::function<at::Tensor(const Tensors&)>& run, const Tensors& operands,
                  const at::Tensor& dout) {
  Tensors results = {run(operands)};
  for (const at::Tensor& grad : torch::autograd::grad({results[0]}, operands, {dout}))
    results.push_back(grad);
  return results;
}

nlohmann::ordered_json TimeOnCuda(const DifferentiableOperation& operation, int rounds) {
  const std::vector<Tensors> sets = MakeSets(operation);
  MemoryCeiling ceiling(at::kCUDA, int64_t{1} << 31, MemoryCeiling::Kind::kCopy);
  Timer forward(at::kCUDA), both(at::kCUDA);
  std::vector<double> forward_ms, both_ms, copy;
  size_t calls = 0;
  for (int round = -kWarmUps; round < rounds; ++round) {
    if (round == 0) {
      forward_ms.clear(), both_ms.clear(), copy.clear();
      forward.StartCounting(), both.StartCounting();
    }
    {
      const c10::AutoGradMode no_grad(false);
      const Tensors& operands = sets[calls++ % sets.size()];
      forward_ms.push_back(forward.Milliseconds([&] { operation.run(operands); }));
    }
    const Tensors& operands = sets[calls++ % sets.size()];
    both_ms.push_back(
        both.Milliseconds([&] { ResultsOf(operation.run, operands, operation.dout); }));
    copy.push_back(ceiling.GigabytesPerSecond());
  }
  const double copied = Median(copy), of_operands = BytesOf(sets[0]),
               of_output = static_cast<double>(operation.dout.nbytes());
  return {{"device", DeviceName(at::kCUDA)},
          {"rounds", rounds},
          {"copy_gb_per_s", copied},
          {"forward", Report(forward_ms, forward, of_operands + of_output, copied)},
          {"forward_backward", Report(both_ms, both, 3 * of_operands + 2 * of_output, copied)}};
}

}  // namespace halflife::bench
