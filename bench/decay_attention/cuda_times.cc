#include "cuda_times.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "support/measure.h"

namespace halflife::bench {
namespace {

constexpr int kWarmUps = 10;
constexpr int64_t kBf16Bytes = 2;

// A bf16 product with fp32 accumulation.
class Matmul {
 public:
  explicit Matmul(const at::TensorOptions& options)
      : a_(at::randn({kSize, kSize}, options)),
        b_(at::randn({kSize, kSize}, options)),
        c_(at::empty({kSize, kSize}, options)) {}
  double Gflops() {
    return 2e-6 * kSize * kSize * kSize / Milliseconds(at::kCUDA, [&] { at::mm_out(c_, a_, b_); });
  }

 private:
  static constexpr int64_t kSize = 8192;
  at::Tensor a_, b_, c_;
};

struct Samples {
  std::vector<double> forward_ms, both_ms, copy, matmul;
};

struct PassTimes {
  const std::vector<double>& ms;
  double late_share;  // Share of the calls in which the GPU waited for the host.
};

// Makes at least two problems, and enough that none is still in the cache when it is used again.
// Each call of either pass uses the next one.
std::vector<Problem> MakeProblems(const Shape& shape, const at::TensorOptions& options,
                                  int64_t cache_bytes) {
  const double bytes = CompulsoryBytes(shape, kBf16Bytes, false);
  const double wanted = 2.0 * static_cast<double>(cache_bytes) / bytes;
  std::vector<Problem> problems;
  do {
    problems.emplace_back(shape, options);
  } while (static_cast<double>(problems.size()) < std::clamp(wanted, 2.0, 64.0));
  return problems;
}

nlohmann::json Report(const Shape& shape, const PassTimes& times, bool backward, double copy,
                      double matmul) {
  const double median = Median(times.ms);
  const double bandwidth = CompulsoryBytes(shape, kBf16Bytes, backward) / median * 1e-6;
  const double gflops = Flops(shape, backward) / median * 1e-6;
  return {{"ms", median},
          {"ms_p10", Quantile(times.ms, 0.1)},
          {"ms_p90", Quantile(times.ms, 0.9)},
          {"late_share", times.late_share},
          {"gb_per_s", bandwidth},
          {"gflop_per_s", gflops},
          {"share_of_memory_roofline", bandwidth / copy},
          {"share_of_matmul", gflops / matmul}};
}

}  // namespace

nlohmann::json CompareOnCuda(const Shape& shape, int rounds) {
  const at::TensorOptions options = at::TensorOptions(FindDevice("cuda")).dtype(at::kBFloat16);
  // Operands and results are rounded to bf16, 2^-9 each, in three successive products.
  const double error = WorstError(shape, options);
  HL_CHECK(error < 1e-2, "the kernel is off by ", error, " of the oracle's output");
  const std::vector<Problem> problems = MakeProblems(shape, options, CacheBytes(at::kCUDA));
  MemoryCeiling copy(at::kCUDA, int64_t{1} << 31, MemoryCeiling::Kind::kCopy);
  Matmul matmul(options);
  Samples samples;
  Timer forward(at::kCUDA), both(at::kCUDA);
  size_t calls = 0;
  for (int round = -kWarmUps; round < rounds; ++round) {
    if (round == 0) samples = {}, forward.StartCounting(), both.StartCounting();
    const auto next = [&]() -> const Problem& { return problems[calls++ % problems.size()]; };
    {
      const c10::AutoGradMode no_grad(false);
      const Problem& p = next();
      samples.forward_ms.push_back(forward.Milliseconds([&] { Ours(p); }));
    }
    const Problem& p = next();
    samples.both_ms.push_back(both.Milliseconds([&] { OursWithGradients(p); }));
    samples.copy.push_back(copy.GigabytesPerSecond());
    samples.matmul.push_back(matmul.Gflops());
  }
  const double copied = Median(samples.copy), multiplied = Median(samples.matmul);
  return {{"device", DeviceName(at::kCUDA)},
          {"kind", shape.kind},
          {"batch", shape.batch},
          {"seq_len", shape.seq_len},
          {"heads", shape.heads},
          {"dim", shape.dim},
          {"dim_v", shape.values()},
          {"qk_heads", shape.groups()},
          {"segments", shape.segments},
          {"dtype", "bf16"},
          {"rounds", rounds},
          {"max_error", error},
          {"copy_gb_per_s", copied},
          {"matmul_gflop_per_s", multiplied},
          {"forward",
           Report(shape, {samples.forward_ms, forward.late_share()}, false, copied, multiplied)},
          {"forward_backward",
           Report(shape, {samples.both_ms, both.late_share()}, true, copied, multiplied)}};
}

}  // namespace halflife::bench
