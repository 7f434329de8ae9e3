// A text of a batch has the same bits as alone, whatever else is in the batch and whether or not
// its prefix was kept. Scores equal those of one forward pass.
#include "infer/batch_decoder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <utility>

#include "infer/row_group.h"
#include "kernels/linear/linear_products.h"
#include "model/mixer_forms.h"
#include "support/expect_error.h"

namespace halflife::infer {
namespace {

constexpr int64_t kVocab = 50, kChunk = 16;

model::ModelConfig Small(const model::MixerConfig& mixer) {
  return {.vocab_size = kVocab,
          .model_dim = 32,
          .num_layers = 2,
          .initializer_range = 0.1,
          .mixer = mixer,
          .channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", 48}})};
}

// A text as it was reported.
struct Told {
  std::vector<ScoredToken> prompt, tokens;
  TextResult result;
  bool ended = false;
};
std::vector<float> Logprobs(const std::vector<ScoredToken>& tokens) {
  std::vector<float> values;
  for (const ScoredToken& token : tokens) {
    values.push_back(static_cast<float>(token.id));
    values.push_back(token.logprob);
    for (const TokenLogprob& top : token.top) values.push_back(top.logprob);
  }
  return values;
}

TextRequest Recorded(TextRequest request, Told& told) {
  request.on_prompt = [&](std::vector<ScoredToken> tokens) {
    told.prompt.insert(told.prompt.end(), tokens.begin(), tokens.end());
  };
  request.on_token = [&](const ScoredToken& token) {
    told.tokens.push_back(token);
    return true;
  };
  request.on_end = [&](const TextResult& result) {
    EXPECT_FALSE(told.ended);
    told.result = result;
    told.ended = true;
  };
  return request;
}

Told Alone(const model::LanguageModel& model, const TextRequest& request) {
  BatchDecoder decoder(model, {.max_texts = 1, .prefix = {.max_bytes = 0, .chunk = kChunk}});
  Told told;
  decoder.Add(Recorded(request, told));
  while (decoder.Advance()) {
  }
  return told;
}

// Draws prompts of up to four chunks. Some share their first tokens.
std::vector<TextRequest> RandomRequests(int count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t limit) { return static_cast<int64_t>(random() % limit); };
  std::vector<TextRequest> requests;
  for (int i = 0; i < count; ++i) {
    TextRequest request = {.max_tokens = 1 + below(20),
                           .top_logprobs = static_cast<int>(below(4)) - 1};
    request.sampler = {.temperature = below(3) == 0 ? 0.0 : 1.0,
                       .top_p = 0.9,
                       .repetition_penalty = below(2) == 0 ? 1.0 : 1.2,
                       .seed = static_cast<uint64_t>(below(5))};
    request.score_prompt = below(4) == 0;
    if (below(2) == 0) request.end_ids = {3, 4};
    if (i > 0 && below(2) == 0) {
      const std::vector<int32_t>& other = requests[below(i)].prompt;
      request.prompt.assign(other.begin(), other.begin() + 1 + below(other.size()));
    }
    for (int64_t more = below(3 * kChunk) + 1; more > 0; --more)
      request.prompt.push_back(static_cast<int32_t>(below(kVocab)));
    requests.push_back(std::move(request));
  }
  return requests;
}

class BatchDecoderTest : public testing::TestWithParam<std::string> {
 protected:
  BatchDecoderTest() : model_(Small(model::TestForms(GetParam()).front())) {
    model_.BindOwnMemory(1, false);
  }
  model::LanguageModel model_;
};
INSTANTIATE_TEST_SUITE_P(All, BatchDecoderTest, testing::ValuesIn(model::NamesOf(model::kMixers)),
                         [](const auto& param_info) { return param_info.param; });

TEST_P(BatchDecoderTest, ATextHasTheSameBitsInEveryBatch) {
  const std::vector<TextRequest> requests = RandomRequests(24, 7);
  std::vector<Told> alone;
  for (const TextRequest& request : requests) alone.push_back(Alone(model_, request));
  for (const uint64_t seed : {1, 2}) {
    std::mt19937_64 random(seed);
    std::vector<size_t> order(requests.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    // 19 rows: two groups and a part of a third.
    BatchDecoder decoder(model_,
                         {.max_texts = 19, .prefix = {.max_bytes = 100'000, .chunk = kChunk}});
    std::vector<Told> told(requests.size());
    Told noise;
    size_t next = 0;
    while (decoder.Advance() || next < order.size()) {
      while (next < order.size() && decoder.has_room() && random() % 3 != 0) {
        decoder.Add(Recorded(requests[order[next]], told[order[next]]));
        ++next;
        if (random() % 4 != 0 || !decoder.has_room()) continue;
        noise = {};  // A text that is cancelled at once or after its first chunk.
        const int64_t number = decoder.Add(Recorded(requests[order[next - 1]], noise));
        if (random() % 2 == 0) decoder.Advance();
        decoder.Cancel(number);
      }
      EXPECT_LE(decoder.prefixes().bytes(), 100'000);
    }
    EXPECT_EQ(decoder.num_texts(), 0);
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "request " << i << ", seed " << seed);
      ASSERT_TRUE(told[i].ended);
      EXPECT_EQ(told[i].result.end, alone[i].result.end);
      ASSERT_EQ(Logprobs(told[i].prompt), Logprobs(alone[i].prompt));
      ASSERT_EQ(Logprobs(told[i].tokens), Logprobs(alone[i].tokens));
    }
    EXPECT_GT(decoder.stats().kept_tokens, 0);
  }
}

// Returns the logits of rows 2 and 4 of a group of 8 whose other rows are empty.
std::vector<at::Tensor> LogitsOfTwoRows(const model::LanguageModel& model, bool always_all) {
  RowGroup group(model, BatchDecoder::kGroupRows, always_all);
  group.Place(2, model.EmptyState(1));
  group.Place(4, model.EmptyState(1));
  std::vector<at::Tensor> logits;
  for (int32_t id = 5; id < 8; ++id)
    for (const int64_t row : {2, 4})
      logits.push_back(group.Step(std::vector<int32_t>(8, id)).select(0, row).clone());
  return logits;
}
TEST_P(BatchDecoderTest, EmptyRowsNeedNotBeComputed) {
  const RowBits bits = CompareRows(model_, BatchDecoder::kGroupRows);
  if (GetParam() == "gla" && kernels::HasSkinnyMatmul()) {
    EXPECT_TRUE(bits.same_for_count);
  }
  if (!bits.same_for_count) GTEST_SKIP() << "bits depend on the number of rows";
  const std::vector<at::Tensor> all = LogitsOfTwoRows(model_, true),
                                range = LogitsOfTwoRows(model_, false);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(range[i].equal(all[i]));
}

// The scores of a text of 3.5 chunks: of its prompt, and of the tokens that continue it.
TEST_P(BatchDecoderTest, ScoresAreThoseOfOneForwardPass) {
  TextRequest request = RandomRequests(1, 3).front();
  request.prompt.resize(3 * kChunk + kChunk / 2, 11);
  request.score_prompt = true;
  request.max_tokens = 9;
  request.end_ids = {};
  request.top_logprobs = 2;
  const Told told = Alone(model_, request);
  std::vector<int64_t> ids(request.prompt.begin(), request.prompt.end());
  for (const ScoredToken& token : told.tokens) ids.push_back(token.id);
  ASSERT_EQ(ids.size(), request.prompt.size() + 9);
  std::vector<ScoredToken> scored = told.prompt;
  scored.insert(scored.end(), told.tokens.begin(), told.tokens.end());
  ASSERT_EQ(scored.size(), ids.size() - 1);

  const at::NoGradGuard no_grad;
  const auto length = static_cast<int64_t>(ids.size());
  const auto slice = model::SequenceSlice::Contiguous(1, length, 0, at::kCPU);
  const at::Tensor logprobs =
      at::log_softmax(model_.Logits(model_.Hidden(at::tensor(ids).unsqueeze(0), {.slice = &slice})),
                      -1)
          .squeeze(0);
  for (int64_t t = 0; t + 1 < length; ++t) {
    EXPECT_EQ(scored[t].id, ids[t + 1]);
    EXPECT_NEAR(scored[t].logprob, logprobs[t][ids[t + 1]].item<float>(), 1e-4) << "token " << t;
    EXPECT_NEAR(scored[t].top.at(0).logprob, logprobs[t].max().item<float>(), 1e-4);
  }
}

TEST(BatchDecoder, AKeptPrefixSkipsAllButTheLastChunk) {
  model::LanguageModel model(Small(model::TestForms("gla").front()));
  model.BindOwnMemory(1, false);
  BatchDecoder decoder(model, {.max_texts = 2, .prefix = {.chunk = kChunk}});
  std::vector<int32_t> prompt(1000, 5);
  const auto steps_to_first_token = [&] {
    Told told;
    decoder.Add(Recorded({.prompt = prompt, .max_tokens = 1}, told));
    int steps = 1;
    while (decoder.Advance()) ++steps;
    EXPECT_EQ(told.tokens.size(), 1u);
    return steps;
  };
  EXPECT_EQ(steps_to_first_token(), 1000 / kChunk + 1);
  EXPECT_EQ(steps_to_first_token(), 1);
  prompt.push_back(7);
  EXPECT_EQ(steps_to_first_token(), 1);
  prompt[0] = 6;
  EXPECT_EQ(steps_to_first_token(), 1000 / kChunk + 1);
  prompt.resize(10 * kChunk);  // The kept beginnings are 1, 2, 4, 8, ... chunks long.
  EXPECT_EQ(steps_to_first_token(), 2);
}

// Texts with the same prompt that are added together read it once, also if the first is cancelled.
TEST(BatchDecoder, EqualPromptsAreReadOnce) {
  model::LanguageModel model(Small(model::TestForms("gla").front()));
  model.BindOwnMemory(1, false);
  constexpr int64_t kPrompt = 10 * kChunk + 5, kTexts = 6;
  const auto request = [&](int64_t text) {
    return TextRequest{.prompt = std::vector<int32_t>(kPrompt, 5),
                       .max_tokens = 4,
                       .sampler = {.seed = static_cast<uint64_t>(text)},
                       .top_logprobs = 0};
  };
  for (const bool cancels : {false, true}) {
    SCOPED_TRACE(cancels);
    BatchDecoder decoder(model, {.max_texts = kTexts + 1, .prefix = {.chunk = kChunk}});
    std::vector<Told> told(kTexts);
    Told other;
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < kTexts; ++i)
      numbers.push_back(decoder.Add(Recorded(request(i), told[i])));
    decoder.Add(Recorded({.prompt = {1, 2}, .max_tokens = 1}, other));
    decoder.Advance();
    decoder.Advance();
    EXPECT_TRUE(other.ended) << "another prompt does not wait";
    for (int i = 0; i < 3; ++i) decoder.Advance();
    if (cancels) decoder.Cancel(numbers[0]);
    while (decoder.Advance()) {
    }
    const size_t first = cancels ? 1 : 0;
    EXPECT_EQ(told[first].result.kept_tokens, cancels ? 4 * kChunk : 0);
    for (size_t i = first; i < told.size(); ++i) {
      EXPECT_EQ(Logprobs(told[i].tokens), Logprobs(Alone(model, request(i)).tokens)) << i;
      if (i > first) {
        EXPECT_EQ(told[i].result.kept_tokens, 10 * kChunk);
      }
    }
  }
}

TEST(PrefixStore, DropsTheLeastRecentlyUsed) {
  model::LanguageModel model(Small(model::TestForms("gla").front()));
  model.BindOwnMemory(1, false);
  model::ModelState state = model.EmptyState(1);
  state.num_tokens = 2;
  const int64_t each = state.bytes() + 8;
  PrefixStore store({.max_bytes = 2 * each, .chunk = 2});
  store.Keep(std::vector<int32_t>{1, 2}, state);
  store.Keep(std::vector<int32_t>{3, 4}, state);
  const auto found = [&](std::vector<int32_t> prompt) { return store.Find(prompt).num_tokens; };
  EXPECT_EQ(found({1, 2}), 0) << "at least one token must be left to read";
  EXPECT_EQ(found({1, 2, 3}), 2);
  store.Keep(std::vector<int32_t>{5, 6}, state);
  EXPECT_EQ(store.bytes(), 2 * each);
  EXPECT_EQ(found({3, 4, 5}), 0);
  EXPECT_EQ(found({1, 2, 9, 9, 9}), 2);
  EXPECT_EQ(found({5, 6, 1}), 2);
  EXPECT_EQ(PrefixStore({.max_bytes = each - 1, .chunk = 2}).bytes(), 0);
}

// The state of a first chunk may be views of a larger tensor, for example of the joined projection.
TEST(PrefixStore, KeepsNoStorageThatItDoesNotCount) {
  for (const model::MixerConfig& mixer :
       {model::TestForms("softmax").front(), model::TestForms("gla").front()}) {
    model::LanguageModel model(Small(mixer));
    model.BindOwnMemory(1, false);
    model::ModelState state = model.EmptyState(1);
    const std::vector<int32_t> prefix(kChunk, 3);
    const auto slice = model::SequenceSlice::Contiguous(1, kChunk, 0, model.device());
    {
      const at::NoGradGuard no_grad;
      model.Hidden(at::full({1, kChunk}, 3, at::kLong), {.slice = &slice}, &state);
    }
    PrefixStore store({.max_bytes = 1 << 20, .chunk = kChunk});
    store.Keep(prefix, state);
    EXPECT_EQ(store.bytes(), state.bytes() + kChunk * 4);
    const std::vector<int32_t> prompt(kChunk + 1, 3);
    const model::ModelState kept = store.Find(prompt);
    size_t bytes = 0;
    for (size_t layer = 0; layer < kept.layers.size(); ++layer)
      for (size_t i = 0; i < kept.layers[layer].tensors.size(); ++i) {
        const at::Tensor& tensor = kept.layers[layer].tensors[i];
        bytes += tensor.storage().nbytes();
        EXPECT_TRUE(tensor.equal(state.layers[layer].tensors[i]));
      }
    EXPECT_EQ(static_cast<int64_t>(bytes) + kChunk * 4, store.bytes()) << mixer.name();
  }
}

TEST(BatchDecoder, EndsTextsForEveryReason) {
  model::ModelConfig config = Small(model::TestForms("gla").front());
  config.positions = model::PositionsConfig("learned", {{"max_positions", int64_t{8}}});
  model::LanguageModel model(config);
  model.BindOwnMemory(1, false);
  const auto end = [&](TextRequest request) { return Alone(model, request).result; };
  EXPECT_EQ(end({.prompt = {1, 2}, .max_tokens = 3}).end, TextEnd::kLength);
  EXPECT_EQ(end({.prompt = {1, 2}, .max_tokens = 0, .score_prompt = true}).end, TextEnd::kLength);
  const TextResult limit = end({.prompt = {1, 2}, .max_tokens = 30});
  EXPECT_EQ(limit.end, TextEnd::kPositions);
  EXPECT_EQ(limit.new_tokens, 7);
  TextRequest greedy = {.prompt = {1, 2}, .max_tokens = 5, .sampler = {.temperature = 0}};
  greedy.end_ids = {Alone(model, greedy).tokens.at(0).id};
  EXPECT_EQ(end(greedy).end, TextEnd::kStop);
  EXPECT_EQ(end(greedy).new_tokens, 1);
  EXPECT_TRUE(Alone(model, greedy).tokens.at(0).is_end);

  BatchDecoder decoder(model, {.max_texts = 1});
  EXPECT_HL_ERROR(decoder.Add({.prompt = {}}), ExitCode::kUsage, "the prompt is empty");
  EXPECT_HL_ERROR(decoder.Add({.prompt = std::vector<int32_t>(9, 1)}), ExitCode::kUsage,
                  "Use at most 8.");
  EXPECT_EQ(decoder.num_texts(), 0);
}

// A text whose logits are not finite fails alone.
TEST(BatchDecoder, AFailedTextLeavesTheOthers) {
  model::LanguageModel model(Small(model::TestForms("softmax").front()));
  model.BindOwnMemory(1, false);
  {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < model.parameters().size(); ++i)
      if (model.parameters().specs()[i].shape == std::vector<int64_t>{kVocab, 32}) {
        model.parameters().tensor(i)[9].fill_(NAN);  // The embedding or the head of token 9.
        break;
      }
  }
  const TextRequest good = {.prompt = {1, 2, 3}, .max_tokens = 6, .vocab_size = 9};
  const Told alone = Alone(model, good);
  BatchDecoder decoder(model, {.max_texts = 3, .prefix = {.chunk = kChunk}});
  Told a, b;
  decoder.Add(Recorded(good, a));
  decoder.Add(Recorded({.prompt = {1, 9}, .max_tokens = 6, .vocab_size = 9}, b));
  while (decoder.Advance()) {
  }
  EXPECT_EQ(b.result.end, TextEnd::kFailed);
  EXPECT_THAT(b.result.error, testing::HasSubstr("logit of token"));
  EXPECT_EQ(a.result.end, TextEnd::kLength);
  EXPECT_EQ(Logprobs(a.tokens), Logprobs(alone.tokens));
}

// A prompt for which there is no memory fails alone, and texts that are decoded together fail
// together. Other errors of LibTorch are no fault of the text and escape.
TEST(BatchDecoder, TextsWithoutMemoryLeaveTheOthers) {
  model::LanguageModel model(Small(model::TestForms("softmax").front()));
  model.BindOwnMemory(1, false);
  const TextRequest good = {.prompt = {1, 2, 3}, .max_tokens = 6};
  const Told alone = Alone(model, good);
  std::function<void()> fail_once;
  model.SetAwaitLayer([&](int64_t layer) {
    if (layer == 1 && fail_once) std::exchange(fail_once, nullptr)();
  });
  BatchDecoder decoder(model, {.max_texts = 2, .prefix = {.chunk = kChunk}});
  Told a;
  decoder.Add(Recorded(good, a));
  decoder.Advance();
  const auto read = [&](const std::function<void()>& fail) {
    Told told;
    decoder.Add(Recorded({.prompt = std::vector<int32_t>(5, 7), .max_tokens = 6}, told));
    fail_once = fail;  // A prompt is read before texts are decoded.
    decoder.Advance();
    return told;
  };
  const std::vector<std::function<void()>> no_memory = {
      [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory."); },
      [] { TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory"); }};
  for (const auto& fail : no_memory) {
    const Told told = read(fail);
    EXPECT_TRUE(told.ended);
    EXPECT_EQ(told.result.end, TextEnd::kNoMemory);
    EXPECT_EQ(decoder.num_texts(), 1);
  }
  while (decoder.Advance()) {
  }
  EXPECT_EQ(a.result.end, TextEnd::kLength);
  EXPECT_EQ(Logprobs(a.tokens), Logprobs(alone.tokens));

  // The states of texts that were decoded together are lost, and the next text finds room.
  Told b, c, later;
  decoder.Add(Recorded(good, b));
  decoder.Add(Recorded(good, c));
  decoder.Advance();
  decoder.Advance();
  ASSERT_EQ(b.tokens.size(), 3u) << "it is decoded";
  fail_once = no_memory.front();
  EXPECT_FALSE(decoder.Advance());
  for (const Told* told : {&b, &c}) EXPECT_EQ(told->result.end, TextEnd::kNoMemory);
  decoder.Add(Recorded(good, later));
  while (decoder.Advance()) {
  }
  EXPECT_EQ(Logprobs(later.tokens), Logprobs(alone.tokens));

  Told other;
  decoder.Add(Recorded(good, other));
  fail_once = [] { TORCH_CHECK(false, "index out of range"); };
  EXPECT_THROW(decoder.Advance(), c10::Error);
  EXPECT_FALSE(other.ended);
}

}  // namespace
}  // namespace halflife::infer
