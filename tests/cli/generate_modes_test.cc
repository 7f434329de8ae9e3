// Texts for which there is no memory: the message and the exit code of each mode.
#include "cli/generate_modes.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "model/mixer_forms.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::cli {
namespace {

// Loads a model with random weights that runs out of memory in the first pass over a prompt.
infer::LoadedModel ModelWithoutMemory() {
  infer::LoadedModel loaded;
  loaded.model = std::make_unique<model::LanguageModel>(
      model::ModelConfig{.vocab_size = 259,
                         .model_dim = 32,
                         .num_layers = 1,
                         .mixer = model::TestForms("gla").front(),
                         .channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", 48}})});
  loaded.model->BindOwnMemory(1, false);
  loaded.tokenizer = data::MakeByteTokenizer();
  // The constructor of a BatchDecoder runs the model too.
  const auto passes = std::make_shared<int64_t>(0);
  loaded.model->SetAwaitLayer([passes](int64_t) { ++*passes; });
  infer::BatchDecoder(*loaded.model, {.max_texts = 1});
  loaded.model->SetAwaitLayer([passes](int64_t) {
    TORCH_CHECK_WITH(OutOfMemoryError, --*passes >= 0, "CUDA out of memory.");
  });
  return loaded;
}

TEST(GenerateModes, PromptsWithoutMemoryAreAnErrorOfTheEnvironment) {
  const test::TempDir dir;
  GenerateOptions options;
  options.prompts = (dir.path() / "prompts.jsonl").string();
  std::ofstream(options.prompts) << "\"the river\"\n";
  const infer::LoadedModel loaded = ModelWithoutMemory();
  testing::internal::CaptureStdout();
  const ExitCode code = GenerateFromFile(options, loaded, *loaded.tokenizer);
  EXPECT_THAT(testing::internal::GetCapturedStdout(),
              testing::HasSubstr("\"there was no memory for it. Use a smaller --batch.\""));
  EXPECT_EQ(code, ExitCode::kEnvironment);
}

TEST(GenerateModes, AnAnswerWithoutMemoryIsAnErrorOfTheEnvironment) {
  GenerateOptions options;
  options.chat = true;
  options.prompt = "Hi";
  const infer::LoadedModel loaded = ModelWithoutMemory();
  EXPECT_HL_ERROR(GenerateChat(options, loaded, *loaded.tokenizer), ExitCode::kEnvironment,
                  "there was no memory for an answer to a conversation of");
}

}  // namespace
}  // namespace halflife::cli
