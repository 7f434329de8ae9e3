// Tables of loss by length: every length scores the same targets, methods have no effect at the
// training length, and combinations that do not fit are refused.
#include "eval/length_table.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>

#include "data/prepare/prepare.h"
#include "dist/local_communicator.h"
#include "eval/batch_tensors.h"
#include "eval/part_sums.h"
#include "eval/validation.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::eval {
namespace {

constexpr int64_t kTrainLen = 16;

class LengthTables : public testing::Test {
 protected:
  LengthTables() {
    {
      std::ofstream text(dir_ / "text.txt");
      for (int line = 0; line < 60; ++line) text << "line " << line * line % 97 << " of one text\n";
    }
    data::Prepare({.input = {.paths = {(dir_ / "text.txt").string()},
                             .tokenizer = "bytes",
                             .validation_fraction = 0},
                   .documents = data::DocumentMode::kFile,
                   .output = {.out = dir_ / "text", .threads = 1}});
    dataset_.emplace(data::Dataset::Open(dir_ / "text"));
  }
  static model::ModelConfig Config(const model::MixerConfig& mixer) {
    model::ModelConfig config = {.vocab_size = 259, .model_dim = 16, .num_layers = 2};
    config.initializer_range = 0.5;
    config.mixer = mixer;
    return config;
  }
  static model::ModelConfig Softmax(double rope_theta = 10000) {
    return Config(
        model::MixerConfig("softmax", {{"num_heads", int64_t{2}}, {"rope_theta", rope_theta}}));
  }
  LengthRow Score(const std::string& method, int64_t length, int world = 1, int64_t bin = 0,
                  const model::ModelConfig& config = Softmax(), bool attention = false) const {
    return ScoreIn({.train_len = kTrainLen,
                    .lengths = {16, 32, 128},
                    .num_windows = 3,
                    .batch_tokens = 64,
                    .bin = bin,
                    .attention = attention},
                   method, length, world, config);
  }
  LengthRow ScoreIn(const LengthTable& table, const std::string& method, int64_t length,
                    int world = 1, const model::ModelConfig& config = Softmax(),
                    const std::string& protocol = "segments") const {
    LengthRow row;
    dist::LocalWorld::Run(world, [&](dist::Communicator& control) {
      model::LanguageModel model(config);
      model.BindOwnMemory(1, false);
      const LengthRow of_rank =
          ScoreLength(model, data::ViewOf(*dataset_, data::Split::kTrain), table,
                      LengthMethod::Parse(method), Protocol::Parse(protocol), length, control);
      if (control.rank() == 0) row = of_rank;
    });
    return row;
  }
  // Returns the windows of 128 tokens that a table scores, as one batch.
  data::Batch ChosenWindows(int64_t num_windows) const {
    const data::TokenView tokens = data::ViewOf(*dataset_, data::Split::kTrain);
    return data::ReadWindows(tokens, 128,
                             ChooseWindows(num_windows, data::NumWindows(tokens, 128)));
  }
  // Returns the share of masked tokens in three windows of 128 that the model predicts correctly.
  double AccuracyByHand(const model::ModelConfig& config) const {
    model::LanguageModel model(config);
    model.BindOwnMemory(1, false);
    data::Batch batch = ChosenWindows(3);
    ApplyObjective(model.objective(), /*seed=*/0, batch);
    const BatchTensors tensors = ToTensors(batch, at::kCPU);
    const at::Tensor likeliest =
        model.Logits(model.Hidden(tensors.inputs, {.slice = &tensors.slice})).argmax(-1);
    const at::Tensor asked = tensors.targets.ge(0);
    return likeliest.eq(tensors.targets).logical_and(asked).sum().item<double>() /
           asked.sum().item<double>();
  }
  double Loss(const std::string& method, int64_t length) const {
    return Score(method, length).result.loss;
  }

  test::TempDir dir_;
  std::optional<data::Dataset> dataset_;
};

TEST_F(LengthTables, EveryLengthScoresTheSameTargets) {
  for (const int64_t length : {16, 32, 128})
    EXPECT_EQ(Score("as_trained", length).result.num_targets, 3 * 128);
  EXPECT_GT(std::abs(Loss("as_trained", 16) - Loss("as_trained", 128)), 1e-3);
}

// Patterns and scales do not change rows up to the training length. A stretch of 1 is the plain
// rotation, with frequencies computed in another order.
TEST_F(LengthTables, MethodsAreTheModelItselfAtTheTrainingLength) {
  const double as_trained = Loss("as_trained", kTrainLen);
  for (const char* method :
       {"window", "blocks", "blocks+sinks", "info_scale", "log_scale", "window+info_scale"})
    EXPECT_EQ(Loss(method, kTrainLen), as_trained) << method;
  for (const char* method : {"interpolated", "ntk_aware", "yarn", "rerope:16", "lm_infinite:16",
                             "streaming_llm:16", "leaky_rerope:1"})
    EXPECT_NEAR(Loss(method, kTrainLen), as_trained, 1e-5) << method;
}

TEST_F(LengthTables, MethodsChangeLongerRows) {
  const double as_trained = Loss("as_trained", 128);
  for (const char* method :
       {"window", "blocks", "window:8+sinks", "streaming_llm", "lm_infinite", "rerope",
        "leaky_rerope", "interpolated", "ntk_aware", "yarn", "info_scale", "log_scale"})
    EXPECT_GT(std::abs(Loss(method, 128) - as_trained), 1e-5) << method;
  EXPECT_EQ(Loss("window:128", 128), as_trained);
}

// It would change the model at the training length, too.
TEST_F(LengthTables, AScaleThatWasTrainedWithIsNotReplaced) {
  model::ModelConfig config = Softmax();
  config.mixer.Set("query_scale", std::string("log"));
  config.mixer.Set("query_scale_mode", std::string("train"));
  config.mixer.Set("query_scale_length", int64_t{kTrainLen});
  for (const char* method : {"info_scale", "log_scale"})
    EXPECT_HL_ERROR(Score(method, 128, 1, 0, config), ExitCode::kUsage, method,
                    "trained with query_scale log", "as_trained");
}

// If two steps set the same property, only the last one would have an effect.
TEST(LengthMethods, StepsThatUndoEachOtherAreRefused) {
  const std::map<std::string, std::string> refused = {
      {"window:64+blocks:32", "window:64 and blocks:32 both set the pattern"},
      {"window:8+window:16", "window:8 and window:16 both set the pattern"},
      {"blocks+sinks:2+sinks", "sinks:2 and sinks both set the sinks"},
      {"info_scale+window+log_scale", "info_scale and log_scale both set the scale of queries"},
      {"yarn+ntk_aware:2", "yarn and ntk_aware:2 both set the positions"},
      {"streaming_llm+rerope", "streaming_llm and rerope both set the positions"},
      {"interpolated:2+interpolated:2", "interpolated:2 and interpolated:2 both set the positions"},
      {"info_scale+scaled_biases+scaled_biases", "both set whether biases are scaled"}};
  for (const auto& [method, words] : refused)
    EXPECT_HL_ERROR(LengthMethod::Parse(method), ExitCode::kUsage, "--method " + method + ": ",
                    words, "Use only one of them.");
  for (const char* method : {"blocks+sinks+yarn+info_scale+scaled_biases", "as_trained+as_trained",
                             "as_trained+window", "sinks+streaming_llm"})
    EXPECT_EQ(LengthMethod::Parse(method).text(), method);
}

// ALiBi's scores are linear in positions, so its slopes are divided. A factor on scores can include
// its biases.
TEST_F(LengthTables, MethodsOfAlibi) {
  model::ModelConfig alibi = Softmax(/*rope_theta=*/0), halved;
  alibi.positions = model::PositionsConfig("alibi");
  halved = alibi;
  halved.positions.Set("slope_scale", 0.5);
  const auto loss = [&](const std::string& method, int64_t length,
                        const model::ModelConfig& config) {
    return Score(method, length, 1, 0, config).result.loss;
  };
  EXPECT_EQ(loss("interpolated:2", 128, alibi), loss("as_trained", 128, halved));
  EXPECT_EQ(loss("interpolated", kTrainLen, alibi), loss("as_trained", kTrainLen, alibi));
  EXPECT_EQ(loss("interpolated", 32, alibi), loss("as_trained", 32, halved));
  const std::string whole = "info_scale+scaled_biases";
  EXPECT_EQ(loss(whole, kTrainLen, alibi), loss("as_trained", kTrainLen, alibi));
  EXPECT_GT(std::abs(loss(whole, 128, alibi) - loss("info_scale", 128, alibi)), 1e-5);
  EXPECT_HL_ERROR(loss("scaled_biases", 32, alibi), ExitCode::kUsage,
                  "query_scale_bias without query_scale");
  EXPECT_HL_ERROR(loss(whole, 32, Softmax()), ExitCode::kUsage, "add no bias to scores");
}

TEST_F(LengthTables, RanksShareTheWork) {
  for (const char* method : {"as_trained", "yarn+info_scale"}) {
    const LengthRow one = Score(method, 32, 1, /*bin=*/10), three = Score(method, 32, 3, 10);
    EXPECT_NEAR(three.result.loss, one.result.loss, 1e-6);
    ASSERT_EQ(three.result.positions.size(), one.result.positions.size());
    for (size_t i = 0; i < one.result.positions.size(); ++i)
      EXPECT_NEAR(three.result.positions[i].loss, one.result.positions[i].loss, 1e-6);
  }
}

TEST_F(LengthTables, BinsOfPositionsMakeUpTheWhole) {
  const ValidationResult result = Score("as_trained", 32, 1, /*bin=*/12).result;
  ASSERT_EQ(result.positions.size(), 3u);  // Bins of 12, 12 and 8.
  EXPECT_EQ(result.positions[2].begin, 24);
  EXPECT_EQ(result.positions[0].num_targets, 12 * 12);
  EXPECT_EQ(result.positions[2].num_targets, 12 * 8);
  double loss = 0;
  for (const PositionScore& bin : result.positions)
    loss += bin.loss * static_cast<double>(bin.num_targets);
  EXPECT_NEAR(loss / static_cast<double>(result.num_targets), result.loss, 1e-9);
  // The first tokens of a row have no earlier context, so their losses are the same at every
  // length.
  const ValidationResult shorter = Score("as_trained", 16, 1, /*bin=*/16).result;
  EXPECT_EQ(shorter.positions.size(), 1u);
}

// Every target is either seen or new, and the two losses add up to the total. Longer rows have more
// seen targets. The expected sums come from one forward over the same windows.
TEST_F(LengthTables, RecallPartsTheTargets) {
  LengthTable table = {.train_len = kTrainLen,
                       .lengths = {16, 128},
                       .num_windows = 3,
                       .batch_tokens = 64,
                       .recall = true};
  std::map<int64_t, int64_t> seen;
  for (const int64_t length : table.lengths) {
    const ValidationResult result = ScoreIn(table, "as_trained", length).result;
    ASSERT_EQ(result.recall.size(), 4u);
    for (const size_t first : {0, 2}) {
      const RecallScore &old = result.recall[first], &fresh = result.recall[first + 1];
      EXPECT_EQ(old.num_targets + fresh.num_targets, result.num_targets);
      EXPECT_NEAR(old.loss * static_cast<double>(old.num_targets) +
                      fresh.loss * static_cast<double>(fresh.num_targets),
                  result.loss * static_cast<double>(result.num_targets), 1e-9);
    }
    EXPECT_LT(result.recall[2].num_targets, result.recall[0].num_targets);
    seen[length] = result.recall[0].num_targets;
    const ValidationResult two = ScoreIn(table, "as_trained", length, 2).result;
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(two.recall[i].num_targets, result.recall[i].num_targets);
      EXPECT_NEAR(two.recall[i].loss, result.recall[i].loss, 1e-6);
    }
  }
  EXPECT_GT(seen[128], seen[16]);

  model::LanguageModel model(Softmax());
  model.BindOwnMemory(1, false);
  const data::Batch batch = ChosenWindows(3);
  const BatchTensors tensors = ToTensors(batch, at::kCPU);
  const at::Tensor losses =
      model.TokenLosses(tensors.inputs, tensors.targets, {.slice = &tensors.slice}).contiguous();
  double loss = 0;
  const RecallFlags flags = FindRecalled(batch);
  for (size_t i = 0; i < flags.bigram_seen.size(); ++i)
    if (flags.bigram_seen[i] != 0) loss += losses.const_data_ptr<float>()[i];
  const RecallScore bigrams = ScoreIn(table, "as_trained", 128).result.recall[2];
  EXPECT_EQ(bigrams.name, "bigram_seen");
  // A forward of another shape has other roundings of each loss, about 6 nats in fp32.
  EXPECT_NEAR(bigrams.loss, loss / static_cast<double>(bigrams.num_targets), 1e-5);
}

// Each token has a row of 32 before it, or as much as the text has, also from before its window.
// The expected rows end with the token's stride.
TEST_F(LengthTables, SlidingRowsScoreTheirLastTokens) {
  const LengthTable table = {
      .train_len = kTrainLen, .lengths = {32, 128}, .num_windows = 2, .batch_tokens = 64};
  const auto score = [&](const std::string& protocol, int64_t length, int world = 1) {
    return ScoreIn(table, "as_trained", length, world, Softmax(), protocol).result;
  };
  EXPECT_EQ(score("sliding:32", 32).loss, score("segments", 32).loss);
  model::LanguageModel model(Softmax());
  model.BindOwnMemory(1, false);
  const data::TokenView tokens = data::ViewOf(*dataset_, data::Split::kTrain);
  for (const int64_t stride : {1, 8, 16}) {
    double loss = 0;
    for (const int64_t window : ChooseWindows(2, data::NumWindows(tokens, 128))) {
      // All 32 targets of the text's first row are scored.
      for (int64_t end = window == 0 ? 32 : window * 128 + stride; end <= (window + 1) * 128;
           end += stride) {
        data::TokenView from = tokens;  // Its first window is the row that ends there.
        from.read = [&](int64_t begin, std::span<int32_t> ids) {
          tokens.read(end - 32 + begin, ids);
        };
        const BatchTensors row = ToTensors(data::ReadWindows(from, 32, 0, 1), at::kCPU);
        const at::Tensor losses = model.TokenLosses(row.inputs, row.targets, {.slice = &row.slice});
        const int64_t scored = end == 32 ? 32 : stride;
        loss += losses.narrow(1, 32 - scored, scored).sum().item<double>();
      }
    }
    const ValidationResult result = score(Concat("sliding:", stride), 32);
    EXPECT_EQ(result.num_targets, 2 * 128);  // As many as for segments of any length.
    EXPECT_NEAR(result.loss, loss / (2 * 128), 1e-5) << stride;
    EXPECT_NEAR(score(Concat("sliding:", stride), 32, 3).loss, result.loss, 1e-6);
  }
}

TEST_F(LengthTables, CarriedRowsAreWholeRows) {
  const model::ModelConfig gla = Config(model::MixerConfig("gla", {{"num_heads", int64_t{2}}}));
  const LengthTable table = {.train_len = kTrainLen,
                             .lengths = {32, 128},
                             .num_windows = 3,
                             .batch_tokens = 64,
                             .bin = 32,
                             .recall = true};
  for (const int64_t length : table.lengths) {
    const auto score = [&](const char* protocol, int world = 1) {
      return ScoreIn(table, "as_trained", length, world, gla, protocol).result;
    };
    const ValidationResult whole = score("segments"), pieces = score("carried:24"),
                           ranks = score("carried:24", 2);
    EXPECT_EQ(pieces.num_targets, whole.num_targets);
    EXPECT_NEAR(pieces.loss, whole.loss, 1e-5);
    EXPECT_NEAR(pieces.recall[0].loss, whole.recall[0].loss, 1e-5);
    EXPECT_NEAR(ranks.loss, pieces.loss, 1e-6);
  }
}

// Rows of one token have no earlier pair, and a part without targets has no loss.
TEST_F(LengthTables, RecallOfNothingIsNotANumber) {
  const ValidationResult result =
      ScoreIn({.train_len = kTrainLen, .lengths = {1}, .num_windows = 30, .recall = true},
              "as_trained", 1)
          .result;
  EXPECT_EQ(result.recall[2].num_targets, 0);
  EXPECT_TRUE(std::isnan(result.recall[2].loss));
  EXPECT_NEAR(result.recall[3].loss, result.loss, 1e-12);
  model::ModelConfig encoder =
      Config(model::MixerConfig("gau", {{"key_dim", int64_t{8}}, {"causal", false}}));
  encoder.objective = model::ObjectiveConfig("masked_token", {{"mask_id", int64_t{2}}});
  model::LanguageModel hides(encoder);
  EXPECT_HL_ERROR(RequireLengths(hides, {.train_len = 16, .lengths = {16}, .recall = true}),
                  ExitCode::kUsage, "objective is masked_token");
}

// An encoder predicts the same masked tokens at every length, with an accuracy.
TEST_F(LengthTables, HiddenTokensAreTheSameAtEveryLength) {
  model::ModelConfig encoder =
      Config(model::MixerConfig("gau", {{"key_dim", int64_t{8}}, {"causal", false}}));
  encoder.objective = model::ObjectiveConfig("masked_token", {{"mask_id", int64_t{2}}});
  const auto score = [&](const std::string& method, int64_t length, int world = 1) {
    return Score(method, length, world, 0, encoder).result;
  };
  const ValidationResult whole = score("as_trained", 128), rows = score("as_trained", 16);
  EXPECT_GT(whole.num_targets, 20);
  EXPECT_EQ(rows.num_targets, whole.num_targets);
  EXPECT_GT(std::abs(rows.loss - whole.loss), 1e-4);
  EXPECT_NEAR(whole.accuracy.value(), AccuracyByHand(encoder), 1e-12);
  EXPECT_FALSE(whole.bits_per_byte.has_value());
  EXPECT_NEAR(score("as_trained", 32, 3).loss, score("as_trained", 32).loss, 1e-6);
  EXPECT_EQ(score("window:128", 128).loss, whole.loss);
  for (const char* method : {"window:8", "yarn", "info_scale"})
    EXPECT_GT(std::abs(score(method, 128).loss - whole.loss), 1e-5) << method;
  EXPECT_HL_ERROR(score("blocks", 128), ExitCode::kUsage, "in a layer that sees later tokens");
  EXPECT_HL_ERROR(score("rerope", 128), ExitCode::kUsage, "positions support only earlier ones");
}

// InfoScale only sharpens the attention of queries that see more keys than in training. Ranks
// change nothing.
TEST_F(LengthTables, ReportWhatAttentionLooksAt) {
  const auto statistics = [&](const std::string& method, int64_t length, int world = 1) {
    return Score(method, length, world, 0, Softmax(), /*attention=*/true).attention.value();
  };
  const AttentionSummary plain = statistics("as_trained", 128),
                         info = statistics("info_scale", 128);
  ASSERT_EQ(plain.buckets.size(), 8u);                  // 1, 2, 4, ... 64 keys, and 128.
  EXPECT_EQ(plain.buckets[4].num_queries, 3 * 16 * 4);  // Blocks, positions, heads of all layers.
  for (const size_t few : {0, 1, 2, 3})
    EXPECT_EQ(info.buckets[few].entropy, plain.buckets[few].entropy);
  for (const size_t many : {5, 6, 7}) {
    EXPECT_LT(info.buckets[many].entropy, plain.buckets[many].entropy);
    EXPECT_GT(info.buckets[many].largest, plain.buckets[many].largest);
  }
  const AttentionSummary three = statistics("as_trained", 32, 3),
                         one = statistics("as_trained", 32);
  EXPECT_NEAR(three.resolution, one.resolution, 1e-9);
  EXPECT_EQ(three.resolution_by_layer.size(), 2u);
  EXPECT_FALSE(Score("as_trained", 16).attention.has_value());
  model::LanguageModel linear(Config(model::MixerConfig("gla", {{"num_heads", int64_t{2}}})));
  model::LanguageModel squared(
      Config(model::MixerConfig("gau", {{"key_dim", int64_t{8}}, {"normaliser", "squared_relu"}})));
  for (const model::LanguageModel* without : {&linear, &squared})
    EXPECT_HL_ERROR(RequireLengths(*without, {.train_len = 16, .lengths = {16}, .attention = true}),
                    ExitCode::kUsage, "--attention needs a layer of softmax attention",
                    "Leave out --attention.");
}

// Targets with at least half the length of context in their document and row, in text whose
// documents have 6 to 37 tokens. Longer rows have fewer such targets, so their losses show nothing
// about longer context. Ranks change nothing.
TEST_F(LengthTables, CountTargetsWithHalfTheLengthOfContext) {
  std::vector<int32_t> ids;
  for (int32_t document = 0; std::ssize(ids) < 128 * 6 + 1; ++document) {
    for (int32_t i = 0; i < 5 + document * 7 % 32; ++i) ids.push_back(3 + i * document % 200);
    ids.push_back(1);
  }
  const data::TokenView tokens = {.name = "the text",
                                  .info = {.num_tokens = std::ssize(ids)},
                                  .eos_id = 1,
                                  .read = [&](int64_t begin, std::span<int32_t> out) {
                                    std::copy_n(ids.begin() + begin, out.size(), out.begin());
                                  }};
  const auto score = [&](int64_t length, const char* protocol, int world) {
    LengthRow row;
    dist::LocalWorld::Run(world, [&](dist::Communicator& control) {
      model::LanguageModel model(Softmax());
      model.BindOwnMemory(1, false);
      const LengthTable table = {
          .train_len = kTrainLen, .lengths = {16, 32, 128}, .num_windows = 4};
      const LengthRow of_rank = ScoreLength(model, tokens, table, LengthMethod::Parse("as_trained"),
                                            Protocol::Parse(protocol), length, control);
      if (control.rank() == 0) row = of_rank;
    });
    return row.result;
  };
  // Counts the targets of the chosen windows. The row of position p starts at row_begin(p).
  const auto by_hand = [&](int64_t length, const std::function<int64_t(int64_t)>& row_begin) {
    int64_t count = 0;
    for (const int64_t window : ChooseWindows(4, 6))
      for (int64_t p = window * 128; p < (window + 1) * 128; ++p) {
        if (ids[static_cast<size_t>(p)] == 1) continue;  // eos has no target.
        int64_t begin = p;
        while (begin > row_begin(p) && ids[static_cast<size_t>(begin - 1)] != 1) --begin;
        count += p - begin + 1 >= length / 2 ? 1 : 0;
      }
    return count;
  };
  for (const int64_t length : {16, 32, 128}) {
    const ValidationResult rows = score(length, "segments", 1), two = score(length, "segments", 2);
    const int64_t expected = by_hand(length, [&](int64_t p) { return p / length * length; });
    EXPECT_EQ(rows.half_context->num_targets, expected) << length;
    EXPECT_EQ(two.half_context->num_targets, expected) << length;
    EXPECT_EQ(std::isnan(rows.half_context->loss), expected == 0) << length;
    if (expected == 0) continue;
    EXPECT_NEAR(two.half_context->loss, rows.half_context->loss, 1e-6);
  }
  EXPECT_GT(by_hand(16, [](int64_t p) { return p / 16 * 16; }), 0);
  EXPECT_EQ(by_hand(128, [](int64_t p) { return p / 128 * 128; }), 0);
  // A sliding row of 16 ends with the 4 targets that it scores.
  EXPECT_EQ(score(16, "sliding:4", 1).half_context->num_targets,
            by_hand(16, [](int64_t p) { return std::max<int64_t>(0, p / 4 * 4 + 4 - 16); }));
}

TEST_F(LengthTables, SayWhatDoesNotFit) {
  const auto score = [&](const std::string& method, const model::ModelConfig& config) {
    Score(method, 32, 1, 0, config);
  };
  EXPECT_HL_ERROR(score("blocks", Config(model::MixerConfig("gla", {{"num_heads", int64_t{2}}}))),
                  ExitCode::kUsage, "--method blocks needs softmax attention", "as_trained");
  EXPECT_HL_ERROR(score("yarn", Softmax(/*rope_theta=*/0)), ExitCode::kUsage,
                  "--method yarn rotates queries and keys", "trained without");
  model::ModelConfig alibi = Softmax();
  alibi.positions = model::PositionsConfig("alibi");
  EXPECT_HL_ERROR(score("rerope", alibi), ExitCode::kUsage, "positions are alibi");
  score("window+info_scale", alibi);
  EXPECT_HL_ERROR(LengthMethod::Parse("magic"), ExitCode::kUsage,
                  "there is no 'magic'; known:", "\n  blocks:B         a query sees its block");
  EXPECT_HL_ERROR(LengthMethod::Parse("window:x"), ExitCode::kUsage,
                  "'x' is not allowed, because window takes a whole number above 0");
  EXPECT_HL_ERROR(LengthMethod::Parse("as_trained:3"), ExitCode::kUsage, "takes no number");
  EXPECT_HL_ERROR(LengthMethod::Parse("window+"), ExitCode::kUsage, "there is no ''");

  model::LanguageModel model(Softmax());
  EXPECT_HL_ERROR(RequireLengths(model, {.train_len = 16, .lengths = {}}), ExitCode::kUsage,
                  "no length to evaluate. Use --lengths N,...");
  EXPECT_HL_ERROR(RequireLengths(model, {.train_len = 16, .lengths = {16, 24, 32}}),
                  ExitCode::kUsage, "24 does not divide the longest length, 32");
  model::ModelConfig learned = Softmax(0);
  learned.positions = model::PositionsConfig("learned", {{"max_positions", int64_t{64}}});
  model::LanguageModel with_table(learned);
  EXPECT_HL_ERROR(RequireLengths(with_table, {.train_len = 16, .lengths = {64, 128}}),
                  ExitCode::kUsage, "supports 64 positions, fewer than 128", "at most 64");
}

}  // namespace
}  // namespace halflife::eval
