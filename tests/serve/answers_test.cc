// Answers to well-formed requests, over a real socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "eval/scorer.h"
#include "infer/batch_decoder.h"
#include "serve/running_server.h"

namespace halflife::serve::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

class Answers : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server = std::make_unique<RunningServer>(
        ServerConfig{.engine = {.batch = {.max_texts = 12, .prefix = {.chunk = 32}}},
                     .max_prompt_tokens = 3000});
  }
  static void TearDownTestSuite() { server.reset(); }
  static json Complete(const json& body) { return server->PostJson("/v1/completions", body); }
  static json Chat(const json& body) { return server->PostJson("/v1/chat/completions", body); }
  static std::vector<std::string> Keys(const json& object) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object.items()) keys.push_back(key);
    return keys;
  }

  static std::unique_ptr<RunningServer> server;
};
std::unique_ptr<RunningServer> Answers::server;

TEST_F(Answers, ACompletionHasTheFormOfOpenAi) {
  const json answer =
      Complete({{"model", "small"}, {"prompt", "Once"}, {"max_tokens", 7}, {"seed", 3}});
  EXPECT_THAT(Keys(answer), ElementsAre("choices", "created", "id", "model", "object", "usage"));
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "small");
  EXPECT_THAT(answer["id"].get<std::string>(), testing::StartsWith("cmpl-"));
  ASSERT_EQ(answer["choices"].size(), 1u);
  const json& choice = answer["choices"][0];
  EXPECT_THAT(Keys(choice), ElementsAre("finish_reason", "index", "logprobs", "text"));
  EXPECT_EQ(choice["logprobs"], nullptr);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 7);
  EXPECT_EQ(answer["usage"]["total_tokens"], 11);

  // The text is that of a decoder without a server.
  infer::BatchDecoder decoder(server->model(), {.max_texts = 1, .prefix = {.chunk = 32}});
  data::StreamDecoder text(server->tokenizer(), data::StreamDecoder::Begins::kAfterText);
  std::string want;
  const auto add = [&](const std::string& piece) {
    want += json::parse(json(piece).dump(-1, ' ', false, json::error_handler_t::replace))
                .get<std::string>();
  };
  infer::TextRequest request = {.prompt = server->tokenizer().Encode("Once"),
                                .max_tokens = 7,
                                .end_ids = {1},
                                .vocab_size = 259,
                                .sampler = {.seed = 3}};
  request.on_token = [&](const infer::ScoredToken& token) {
    add(text.Push(token.id));
    return true;
  };
  decoder.Add(request);
  while (decoder.Advance()) {
  }
  add(text.Finish());
  EXPECT_EQ(choice["text"], want);
}

TEST_F(Answers, AStreamHasTheTextOfTheWholeAnswer) {
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const bool chat = std::string(path).find("chat") != std::string::npos;
    json body = {{"max_tokens", 40}, {"seed", 9}, {"n", 2}, {"ignore_eos", true}};
    if (chat)
      body["messages"] = {{{"role", "user"}, {"content", "Hello"}}};
    else
      body["prompt"] = "Hello";
    const json whole = server->PostJson(path, body);
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    const Reply reply = server->Post(path, body.dump());
    ASSERT_EQ(reply.status, 200) << reply.body;
    std::vector<std::string> texts(2), reasons(2);
    json usage;
    for (const json& event : StreamedEvents(reply.body)) {
      EXPECT_EQ(event["object"], chat ? "chat.completion.chunk" : "text_completion");
      if (!event["usage"].is_null()) usage = event["usage"];
      for (const json& choice : event["choices"]) {
        const auto index = choice["index"].get<size_t>();
        const json& text = chat ? choice["delta"].value("content", json("")) : choice["text"];
        texts.at(index) += text.get<std::string>();
        if (!choice["finish_reason"].is_null()) reasons.at(index) = choice["finish_reason"];
      }
    }
    for (size_t i = 0; i < 2; ++i) {
      const json& choice = whole["choices"][i];
      EXPECT_EQ(texts[i],
                (chat ? choice["message"]["content"] : choice["text"]).get<std::string>());
      EXPECT_EQ(reasons[i], choice["finish_reason"]);
    }
    EXPECT_EQ(usage["completion_tokens"], whole["usage"]["completion_tokens"]);
    EXPECT_NE(texts[0], texts[1]) << "choices have seeds of their own";
  }
}

TEST_F(Answers, SeveralPromptsAndChoicesAreInOrder) {
  json body = {
      {"prompt", {"one", "two"}}, {"n", 2}, {"max_tokens", 5}, {"seed", 1}, {"echo", true}};
  const json both = Complete(body);
  ASSERT_EQ(both["choices"].size(), 4u);
  body["prompt"] = "two";
  const json second = Complete(body);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(both["choices"][2 + i]["text"], second["choices"][i]["text"]);
    EXPECT_THAT(both["choices"][i]["text"].get<std::string>(), testing::StartsWith("one"));
    EXPECT_EQ(both["choices"][i]["index"], i);
  }
  EXPECT_EQ(both["usage"]["prompt_tokens"], 6) << "a prompt counts once";
}

TEST_F(Answers, StopStringsAndSampling) {
  const json body = {{"prompt", "stop here"},
                     {"max_tokens", 60},
                     {"temperature", 0.3},
                     {"seed", 2},
                     {"ignore_eos", true}};
  const std::string text = Complete(body)["choices"][0]["text"];
  json stops = body;
  const std::string stop = text.substr(text.size() / 2, 2);
  stops["stop"] = {"\x01never", stop};
  const json answer = Complete(stops)["choices"][0];
  EXPECT_EQ(answer["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(answer["finish_reason"], "stop");
  EXPECT_EQ(Complete(body)["choices"][0]["text"], text) << "a function of the seed";
  json other = body;
  other["repetition_penalty"] = 1.3;
  EXPECT_NE(Complete(other)["choices"][0]["text"], text);
  other = body;
  other["frequency_penalty"] = 1.5;
  EXPECT_NE(Complete(other)["choices"][0]["text"], text);
  other = body;
  other["seed"] = 3;
  EXPECT_NE(Complete(other)["choices"][0]["text"], text);
}

// The request of lm-evaluation-harness's local-completions, and what it reads of the answer.
TEST_F(Answers, LogLikelihoodsAsLmEvaluationHarnessAsksForThem) {
  const std::vector<int32_t> context = server->tokenizer().Encode("The capital of France is"),
                             first = server->tokenizer().Encode(" Paris"),
                             second = server->tokenizer().Encode(
                                 " a very long answer, longer than a chunk");
  std::vector<std::vector<int32_t>> prompts;
  for (const auto& continuation : {first, second}) {
    prompts.push_back(context);
    prompts.back().insert(prompts.back().end(), continuation.begin(), continuation.end());
  }
  const json answer = Complete({{"model", "small"},
                                {"prompt", prompts},
                                {"temperature", 0},
                                {"max_tokens", 1},
                                {"logprobs", 1},
                                {"seed", 1234},
                                {"echo", true}});
  for (size_t i = 0; i < prompts.size(); ++i) {
    const json& logprobs = answer["choices"][i]["logprobs"];
    const auto size = prompts[i].size();
    ASSERT_EQ(logprobs["token_logprobs"].size(), size + 1) << "the prompt and one new token";
    EXPECT_EQ(logprobs["tokens"].size(), size + 1);
    EXPECT_EQ(logprobs["text_offset"].back(), size);
    EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
    const std::vector<std::span<const int32_t>> rows = {prompts[i]};
    const std::vector<float> want = eval::ScoreBatch(server->model(), rows, {}).front();
    double sum = 0, want_sum = 0;
    for (size_t t = context.size(); t < size; ++t) {
      sum += logprobs["token_logprobs"][t].get<double>();
      want_sum += want[t - 1];
      double most = -1e9;  // Greedy if the token's logprob equals the largest one exactly.
      for (const auto& [name, value] : logprobs["top_logprobs"][t].items())
        most = std::max(most, value.get<double>());
      EXPECT_GE(most, logprobs["token_logprobs"][t].get<double>());
      EXPECT_LE(logprobs["top_logprobs"][t].size(), 2u);
    }
    EXPECT_NEAR(sum, want_sum, 1e-4);
  }
  // The token that greedy decoding adds has the largest logprob, to the digit.
  const json& last = answer["choices"][0]["logprobs"];
  EXPECT_EQ(last["top_logprobs"].back().size(), 1u);
  EXPECT_EQ(last["top_logprobs"].back().begin().value(), last["token_logprobs"].back());

  const json scored = Complete(
      {{"prompt", prompts[0]}, {"max_tokens", 0}, {"logprobs", 0}, {"echo", true}})["choices"][0];
  EXPECT_EQ(scored["logprobs"]["token_logprobs"].size(), prompts[0].size());
  EXPECT_EQ(scored["logprobs"]["top_logprobs"], nullptr);
  EXPECT_EQ(scored["text"], "The capital of France is Paris");
}

TEST_F(Answers, ChatsUseTheTemplate) {
  const json answer =
      Chat({{"messages",
             {{{"role", "system"}, {"content", "Be brief."}},
              {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Hi"}}}}}}},
            {"max_completion_tokens", 3},
            {"logprobs", true},
            {"top_logprobs", 2},
            {"ignore_eos", true}});
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(answer["usage"]["prompt_tokens"],
            std::string("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                        "<|im_start|>assistant\n")
                .size());
  const json& content = answer["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u);
  EXPECT_THAT(Keys(content[0]), ElementsAre("bytes", "logprob", "token", "top_logprobs"));
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
}

// Older versions of lm-evaluation-harness send messages with "type": "text".
TEST_F(Answers, MessagesOfTheTypeText) {
  json body = {
      {"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 3}, {"seed", 1}};
  const json plain = Chat(body)["choices"];
  body["messages"][0]["type"] = "text";
  EXPECT_EQ(Chat(body)["choices"], plain);
  body["messages"][0]["type"] = "image";
  const Reply refused = server->Post("/v1/chat/completions", body.dump());
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("messages[0].type: \\\"image\\\" is not supported."));
}

// Fields that the openai package sends besides those that have an effect, and a message of an
// answer that is sent back as it came (message.model_dump()).
TEST_F(Answers, FieldsOfTheOpenAiPackageThatChangeNothing) {
  const json user = {{"role", "user"}, {"content", "Hi"}};
  json plain = {
      {"model", "small"}, {"messages", {user}}, {"max_completion_tokens", 3}, {"seed", 1}};
  json full = plain;
  full.update({{"service_tier", "auto"},
               {"prompt_cache_key", "a"},
               {"safety_identifier", "b"},
               {"store", false},
               {"metadata", {{"c", "d"}}},
               {"modalities", {"text"}},
               {"tools", json::array()},
               {"tool_choice", "auto"},
               {"function_call", "none"},
               {"parallel_tool_calls", true},
               {"frequency_penalty", 0},
               {"presence_penalty", 0.0},
               {"logprobs", false},
               {"top_logprobs", 0},
               {"prediction", nullptr}});
  const json choices = Chat(plain)["choices"];
  EXPECT_EQ(Chat(full)["choices"], choices);

  json message = choices[0]["message"];
  plain["messages"] = {user, message, user};
  message.update({{"refusal", nullptr},
                  {"annotations", json::array()},
                  {"audio", nullptr},
                  {"function_call", nullptr},
                  {"tool_calls", nullptr}});
  full["messages"] = {user, message, user};
  EXPECT_EQ(Chat(full)["choices"], Chat(plain)["choices"]);

  full["stream"] = true;
  full["stream_options"] = {{"include_usage", true}, {"include_obfuscation", false}};
  EXPECT_FALSE(StreamedEvents(server->Post("/v1/chat/completions", full.dump()).body).empty());
}

TEST_F(Answers, TheOtherPaths) {
  EXPECT_EQ(server->Get("/health").status, 200);
  const json models = server->Get("/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "small");
  EXPECT_EQ(server->Get("/v1/models/small").json(), models["data"][0]);
  EXPECT_EQ(server->Get("/v1/models/smal.").status, 404);
  EXPECT_EQ(server->Get("/tokenizer_info").json()["eos_token"], "</s>");
  const json ids = server->PostJson("/tokenize", {{"prompt", "ab"}, {"add_special_tokens", false}});
  EXPECT_EQ(ids["tokens"], (json{'a' + 3, 'b' + 3}));
  EXPECT_EQ(server->PostJson("/tokenize", {{"prompt", "</s>"}})["tokens"], (json{1}));
  EXPECT_EQ(server->PostJson("/detokenize", {{"tokens", ids["tokens"]}})["prompt"], "ab");
  EXPECT_THAT(server->Get("/metrics").body,
              HasSubstr("halflife_requests_total{path=\"/tokenize\",status=\"200\"}"));
}

// Clients that obey the header do not reconnect after the five requests that the library announces.
TEST_F(Answers, AConnectionServesManyRequests) {
  httplib::Client client("127.0.0.1", server->port());
  client.set_keep_alive(true);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(client.Get("/health")->get_header_value("Keep-Alive"), "timeout=5, max=1000000000");
}

// The second request reads one chunk of the prompt, whatever its length.
TEST_F(Answers, AKeptPrefixIsNotReadAgain) {
  const std::string prompt(2900, 'x');
  const json body = {{"prompt", prompt}, {"max_tokens", 4}, {"seed", 1}};
  const json first = Complete(body), again = Complete(body);
  EXPECT_EQ(first["choices"], again["choices"]) << "the same digits";
  EXPECT_EQ(again["usage"]["prompt_tokens_details"]["cached_tokens"], 2880);
}

}  // namespace
}  // namespace halflife::serve::test
