// Losses and gradients on the GPU agree with those on the CPU for the same model. The tests are
// skipped with a message if there is no GPU.
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/error.h"
#include "eval/batch_tensors.h"
#include "model/language_model.h"
#include "model/mixer_forms.h"
#include "ops/torch/device_graph.h"
#include "train/device.h"
#include "train/step/gradient_norm.h"
#include "train/step/gradient_sync.h"
#include "train/step/micro_batch_graph.h"

namespace halflife::train {
namespace {

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> grads;  // Per parameter, fp32, on the CPU.
};

std::map<std::string, at::Tensor> GradientsOf(ParameterArena& arena) {
  const at::Tensor flat = arena.grads().cpu();
  std::map<std::string, at::Tensor> grads;
  for (size_t i = 0; i < arena.layout().specs().size(); ++i) {
    const dist::ParamSpec& spec = arena.layout().specs()[i];
    grads[spec.name] = flat.narrow(0, arena.layout().offset(static_cast<int>(i)), spec.count());
  }
  return grads;
}

Outcome LossAndGradients(const std::string& mixer, Device device, at::ScalarType compute_dtype) {
  model::LanguageModel model(
      {.model_dim = 64,
       .num_layers = 2,
       .mixer = model::TestForms(mixer).front(),
       .channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", 128}})});
  ParameterArena arena(model.parameters(),
                       {.device = ToTorch(device), .compute_dtype = compute_dtype});
  arena.Initialise(3);
  const auto world = dist::MakeSelfCommunicator("world");
  GradientSync gradients(arena, *world, {});
  gradients.Attach(model.parameters());
  data::Batch batch{.batch_size = 2, .seq_len = 150, .cu_seqlens = {0, 70, 150, 300}};
  if (!model.LayerOfOneDocument().empty()) batch.cu_seqlens = {0, 150, 300};
  for (int i = 0; i < 300; ++i) {
    batch.inputs.push_back(3 + (i * 37) % 256);
    batch.targets.push_back(i == 69 ? data::kNoTarget : 3 + (i * 11) % 256);
  }
  const eval::BatchTensors tensors = eval::ToTensors(batch, ToTorch(device));
  const model::LossSums sums =
      model.Loss(tensors.inputs, tensors.targets, {.slice = &tensors.slice, .training = true});
  gradients.BeginMicroBatch(0, 1);
  sums.objective.div(299).backward();
  gradients.EndMicroBatch();
  gradients.Finish();
  return {sums.loss.item<double>() / 299, GradientsOf(arena)};
}

double NormOf(const at::Tensor& x) { return at::linalg_vector_norm(x).item<double>(); }

// Compares each parameter separately, so that a wrong gradient with few elements is not hidden by
// larger ones. A gradient whose terms almost cancel, such as that of softmax attention's key
// biases, has the error of its terms. The second summand of the bound allows for that: a parameter
// with a ten-thousandth of the total norm is still checked against its own norm.
void ExpectSameGradients(const std::map<std::string, at::Tensor>& got,
                         const std::map<std::string, at::Tensor>& want, double tolerance) {
  constexpr double kCancelled = 2e-3;
  double squares = 0;
  for (const auto& [name, grad] : want) squares += std::pow(NormOf(grad), 2);
  for (const auto& [name, grad] : want) {
    const double difference = NormOf(got.at(name).sub(grad));
    EXPECT_LE(difference, tolerance * (NormOf(grad) + kCancelled * std::sqrt(squares))) << name;
  }
}

// How the gradients of micro-batches are accumulated.
enum class Way : uint8_t { kDefault, kLaunched, kReplayed };

// Returns micro-batches with other tokens each. With `packed`, every second one has rows of several
// documents, which start at other places each time.
data::Batch BatchOf(int step, bool packed) {
  data::Batch batch{.batch_size = 2, .seq_len = 150, .cu_seqlens = {0, 150, 300}};
  if (packed && step == 0) batch.cu_seqlens = {0, 40, 110, 150, 151, 300};
  if (packed && step == 2) batch.cu_seqlens = {0, 1, 2, 3, 64, 150, 200, 264, 299, 300};
  if (packed && step == 4) batch.cu_seqlens = {0, 100, 112, 150, 153, 300};
  for (int i = 0; i < 300; ++i) {
    batch.inputs.push_back(3 + (i * 37 + step) % 256);
    batch.targets.push_back(3 + (i * 11 + step) % 256);
  }
  batch.samples = {static_cast<uint64_t>(2 * step), static_cast<uint64_t>(2 * step + 1)};
  batch.num_targets = 300;
  return batch;
}

Outcome Accumulate(const model::ModelConfig& config, Device device, Way way, bool packed) {
  const bool replay = way == Way::kReplayed;
  int step = 0;
  model::LanguageModel model(config);
  ParameterArena arena(
      model.parameters(),
      {.device = ToTorch(device), .compute_dtype = device.is_cuda() ? at::kBFloat16 : at::kFloat});
  arena.Initialise(3);
  arena.grads().zero_();
  const auto world = dist::MakeSelfCommunicator("world");
  GradientSync gradients(arena, *world, {.one_by_one = !device.is_cuda()});
  gradients.Attach(model.parameters());
  const auto compute = [&](const eval::BatchTensors& batch) {
    const model::LossSums sums = model.Loss(batch.inputs, batch.targets,
                                            {.slice = &batch.slice,
                                             .training = true,
                                             .num_targets = batch.num_targets,
                                             .samples = batch.samples});
    if (way == Way::kDefault) {
      gradients.BeginMicroBatch(step, /*count=*/7);  // The last one would be summed over ranks.
    } else {
      gradients.BeginRecorded();
    }
    sums.objective.div(300).backward();
    gradients.EndMicroBatch();
    return sums.loss.detach();
  };
  MicroBatchGraph graph(ToTorch(device), compute);
  double loss = 0;
  for (; step < (packed ? 6 : 3); ++step) {
    const eval::BatchTensors tensors = eval::ToTensors(BatchOf(step, packed), ToTorch(device));
    loss += (replay ? graph.Run(tensors) : compute(tensors)).item<double>();
  }
  EXPECT_EQ(graph.num_replays(), !replay ? 0 : packed ? 4 : 2);
  return Outcome{loss, GradientsOf(arena)};
}

// Expects the bits of launches from replays, because the same kernels run on the same numbers. Two
// of three micro-batches are replayed. Where documents may start within rows, two recordings are
// replayed in turn: of rows with one document each, and of rows with documents that differ between
// micro-batches.
void ExpectSameBits(const std::string& mixer, Device device, const std::vector<Way>& ways) {
  const model::ModelConfig config = {
      .model_dim = 64, .num_layers = 2, .dropout = 0.1, .mixer = model::TestForms(mixer).front()};
  const model::LanguageModel model(config);
  const bool packed = (model.LayerOfOneDocument() + model.LayerOfFixedDocuments()).empty();
  const Outcome launched = Accumulate(config, device, Way::kLaunched, packed);
  for (const Way way : ways) {
    const Outcome other = Accumulate(config, device, way, packed);
    EXPECT_EQ(other.loss, launched.loss);
    for (const auto& [name, grad] : launched.grads)
      EXPECT_TRUE(other.grads.at(name).equal(grad))
          << name << (way == Way::kReplayed ? " of a replay" : " of a step without graphs");
  }
}

class StepGpu : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    try {
      device_ = ChooseDevice("cuda", 0);
    } catch (const Error& error) {
      GTEST_SKIP() << error.message();
    }
    PrepareDevice(device_);  // As a run does.
  }
  void Compare(at::ScalarType dtype, double loss_tolerance, double gradient_tolerance) {
    const Outcome gpu = LossAndGradients(GetParam(), device_, dtype);
    const Outcome cpu = LossAndGradients(GetParam(), {}, at::kFloat);
    EXPECT_NEAR(gpu.loss / cpu.loss, 1, loss_tolerance);
    ExpectSameGradients(gpu.grads, cpu.grads, gradient_tolerance);
  }
  Device device_;
};

constexpr char kCpuTest[] =
    "This is a test of the CPU. It is skipped on machines with a GPU to save GPU time.";

// The same bounds on the CPU, where the differences come only from bf16. The worst parameter of all
// mixers differs by 3e-2, and by 1e-6 between two instruction sets in fp32.
class StepInBf16 : public testing::TestWithParam<std::string> {};
TEST_P(StepInBf16, StaysNearFp32OnTheCpu) {
  if (NumGpus() > 0) GTEST_SKIP() << kCpuTest;
  const Outcome bf16 = LossAndGradients(GetParam(), {}, at::kBFloat16);
  const Outcome fp32 = LossAndGradients(GetParam(), {}, at::kFloat);
  EXPECT_NEAR(bf16.loss / fp32.loss, 1, 1e-2);
  ExpectSameGradients(bf16.grads, fp32.grads, 5e-2);
}
INSTANTIATE_TEST_SUITE_P(Mixers, StepInBf16, testing::ValuesIn(model::NamesOf(model::kMixers)));

// fp32 on both sides: sums of up to a few hundred terms in different orders.
TEST_P(StepGpu, Fp32AgreesWithTheCpu) { Compare(at::kFloat, 1e-5, 1e-4); }
// bf16 operands: an error of 2^-9 per rounding, over two layers.
TEST_P(StepGpu, Bf16StaysNearTheCpu) { Compare(at::kBFloat16, 1e-2, 5e-2); }

// A step without graphs writes the gradients of its first micro-batch, where one with graphs adds
// them to zeros.
TEST_P(StepGpu, ReplaysEqualLaunches) {
  if (!ops::DeviceGraph::IsOn(ToTorch(device_))) GTEST_SKIP() << "each launch is checked";
  ExpectSameBits(GetParam(), device_, {Way::kReplayed, Way::kDefault});
}

// On the CPU, a replay runs the recorded function again, on the buffers of the graph and its chunk
// table with unused entries. The default adds micro-batches in another order there.
class StepOnTheCpu : public testing::TestWithParam<std::string> {};
TEST_P(StepOnTheCpu, ReplaysEqualLaunches) {
  if (NumGpus() > 0) GTEST_SKIP() << kCpuTest;
  ExpectSameBits(GetParam(), {}, {Way::kReplayed});
}
INSTANTIATE_TEST_SUITE_P(Mixers, StepOnTheCpu, testing::ValuesIn(model::NamesOf(model::kMixers)));

INSTANTIATE_TEST_SUITE_P(Mixers, StepGpu, testing::ValuesIn(model::NamesOf(model::kMixers)));

// fp64 sums in a different order. They have the same bits for every layout of the parameters.
TEST(GradientNormGpu, AgreesWithTheCpuInAnyLayout) {
  try {
    ChooseDevice("cuda", 0);
  } catch (const Error& error) {
    GTEST_SKIP() << error.message();
  }
  double first = 0;
  for (const int num_slices : {1, 7}) {
    const dist::ParameterLayout layout(
        {{.name = "a", .shape = {100003}}, {.name = "b", .shape = {7, 13}}},
        {.first_bucket_bytes = 4, .bucket_bytes = 4, .num_slices = num_slices});
    const at::Tensor flat = at::zeros({layout.num_elements()});
    for (size_t i = 0; i < layout.specs().size(); ++i) {
      const int64_t count = layout.specs()[i].count();
      flat.narrow(0, layout.offset(i), count).copy_(at::linspace(-3, 5, count, at::kFloat));
    }
    const double norm = SumOfSquares(layout.AllFragments(), flat.to(at::kCUDA));
    EXPECT_NEAR(norm / SumOfSquares(layout.AllFragments(), flat), 1, 1e-12);
    if (num_slices == 1) first = norm;
    EXPECT_EQ(norm, first);
  }
}

}  // namespace
}  // namespace halflife::train
