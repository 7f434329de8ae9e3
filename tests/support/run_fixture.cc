#include "support/run_fixture.h"

#include <fstream>

#include "core/error.h"
#include "core/files.h"
#include "core/philox.h"
#include "support/forked_engine.h"
#include "support/paths.h"

namespace halflife::test {
namespace {

constexpr char kRecipe[] = R"(
data { seq_len: 64 }
model {
  model_dim: 32 num_layers: 2 channel_mixer { swiglu { width: 64 } }
  mixer { gla { num_heads: 2 } }
}
optimizer { lr: 3e-3 clip_norm: 1.0 }
schedule { kind: "cosine" warmup_steps: 5 }
train { steps: 20 global_batch: 8 micro_batch: 2 seed: 7 threads: 1 log_every: 5 }
eval { windows: 16 }
ckpt { every: 5 keep_last: 3 }
comm { timeout_s: 60 }
)";

}  // namespace

std::string MakeText(size_t bytes, uint64_t seed) {
  constexpr const char* kWords[] = {"the",  "river", "carried", "a",     "small", "boat", "past",
                                    "old",  "stone", "walls",   "while", "birds", "sang", "and",
                                    "rain", "fell",  "softly",  "over",  "green", "hills"};
  const RandomKey key = MakeRandomKey(seed, RandomPurpose::kTest, 1);
  std::string text;
  for (uint64_t i = 0; text.size() < bytes; ++i) {
    const RandomCounter draw = Draw(key, i, 0, 0);
    text += kWords[draw.x[0] % std::size(kWords)];
    text += draw.x[1] % 60 == 0 ? ".\n\n" : draw.x[1] % 9 == 0 ? ".\n" : " ";
  }
  return text + "\n";
}

RunFixture::RunFixture(size_t text_bytes) {
  std::ofstream(path("text.txt")) << MakeText(text_bytes, 1);
  std::ofstream(path("recipe.textproto")) << kRecipe;
  const RunResult result =
      Halflife({"prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--documents",
                "blank_lines", "--out", path("data"), "--validation-fraction", "0.2"});
  HL_CHECK(result.exit_code == 0, result.err);
}

std::vector<std::string> RunFixture::Command(const Train& train) const {
  std::vector<std::string> command = {
      kProgram, "train",        "--config", recipe(), "--set", "data.path=" + path("data").string(),
      "--run",  path(train.run)};
  for (const std::string& set : train.set) command.insert(command.end(), {"--set", set});
  command.insert(command.end(), train.flags.begin(), train.flags.end());
  return command;
}

RunResult RunFixture::Run(const Train& train) const {
  const RunOptions options{.timeout_s = train.timeout_s, .env = train.env};
  const std::vector<std::string> command = Command(train);
  return train.ranks == 1 ? RunForked({command.begin() + 1, command.end()}, options)
                          : RunRanks(train.ranks, command, options);
}

RunResult RunFixture::Halflife(const std::vector<std::string>& arguments) const {
  return RunForked(arguments);
}

std::vector<nlohmann::json> RunFixture::Metrics(const std::string& run,
                                                const std::string& key) const {
  std::ifstream file(path(run) / "metrics.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) {
    nlohmann::json json = nlohmann::json::parse(line);
    if (json.contains(key)) lines.push_back(std::move(json));
  }
  return lines;
}

}  // namespace halflife::test
