// Rows that are evaluated in parts equal whole rows, and need only the memory of one part.
#include "eval/scorer.h"

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/philox.h"
#include "eval/batch_tensors.h"
#include "support/peak_bytes.h"

namespace halflife::eval {
namespace {

constexpr int64_t kVocab = 41;

std::unique_ptr<model::LanguageModel> Model(const model::MixerConfig& mixer) {
  model::ModelConfig config = {.vocab_size = kVocab, .model_dim = 16, .num_layers = 2};
  config.initializer_range = 0.3;
  config.mixer = mixer;
  auto model = std::make_unique<model::LanguageModel>(config);
  model->BindOwnMemory(3, false);
  return model;
}

// Draws random tokens and targets. Some tokens have no target.
data::Batch Rows(int64_t rows, int64_t seq_len, std::vector<int32_t> cu_seqlens) {
  const RandomKey key = MakeRandomKey(5, RandomPurpose::kTest, 0);
  data::Batch batch{.batch_size = rows,
                    .seq_len = seq_len,
                    .inputs = {},
                    .targets = {},
                    .cu_seqlens = std::move(cu_seqlens),
                    .samples = {}};
  for (int64_t i = 0; i < rows * seq_len; ++i) {
    const RandomCounter words = Draw(key, static_cast<uint64_t>(i), 0, 0);
    batch.inputs.push_back(static_cast<int32_t>(words.x[0] % kVocab));
    batch.targets.push_back(words.x[2] % 5 == 0 ? data::kNoTarget
                                                : static_cast<int32_t>(words.x[1] % kVocab));
  }
  return batch;
}

// Losses of about 4 nats, from two layers in fp32, with sums in another order: 1e-5 is 20 times
// their rounding. rebased divides by sums of squares, which may be small relative to their terms:
// ten times as much.
TEST(Carried, PiecesAreTheWhole) {
  const c10::AutoGradMode no_grad(false);
  const data::Batch batch = Rows(2, 48, {0, 5, 48, 80, 96});
  const BatchTensors tensors = ToTensors(batch, at::kCPU);
  for (const char* mixer :
       {"gla", "retention", "retnet", "d2d", "mamba", "mamba2", "rwkv4", "rebased"}) {
    const auto model = Model(model::MixerConfig(mixer));
    const at::Tensor whole =
        model->TokenLosses(tensors.inputs, tensors.targets, {.slice = &tensors.slice});
    for (const int64_t piece : {1, 7, 16, 48, 1000})
      EXPECT_LT((CarriedLosses(*model, batch, piece) - whole).abs().max().item<double>(),
                std::string(mixer) == "rebased" ? 1e-4 : 1e-5)
          << mixer << " in pieces of " << piece;
    EXPECT_GT(whole.abs().max().item<double>(), 1);
  }
}

// A row that is 16 times as long only needs more memory for its losses.
TEST(Carried, TakesTheMemoryOfAPiece) {
  const c10::AutoGradMode no_grad(false);
  const auto model = Model(model::MixerConfig("gla", {{"num_heads", int64_t{2}}}));
  const auto peak = [&](int32_t seq_len) {
    const data::Batch batch = Rows(1, seq_len, {0, seq_len});
    const test::PeakBytes bytes;
    CarriedLosses(*model, batch, 64);
    return bytes.peak() - 4.0 * seq_len;
  };
  const double shorter = peak(256), longer = peak(4096);
  EXPECT_GT(shorter, 64 * kVocab * 4);  // The logits of one part.
  EXPECT_NEAR(longer, shorter, 0.05 * shorter);
}

}  // namespace
}  // namespace halflife::eval
