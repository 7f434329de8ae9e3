// Malformed requests get a clear 4xx in OpenAI's form or a closed connection, and the server goes
// on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "serve/running_server.h"

namespace halflife::serve::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Malformed : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    server = std::make_unique<RunningServer>(ServerConfig{.engine = {.max_queued = 20},
                                                          .max_prompt_tokens = 500,
                                                          .max_new_tokens = 100'000,
                                                          .max_body_bytes = 20'000,
                                                          .max_connections = 24,
                                                          .receive_seconds = 2});
  }
  static void TearDownTestSuite() { server.reset(); }
  static void ExpectHealthy() {
    const json answer =
        server->PostJson("/v1/completions", {{"prompt", "a"}, {"max_tokens", 2}, {"seed", 1}});
    EXPECT_EQ(answer["choices"].size(), 1u);
  }
  static void ExpectError(const Reply& reply, int status, const std::string& message) {
    EXPECT_EQ(reply.status, status) << reply.body;
    const json error = reply.json();
    ASSERT_TRUE(error.is_object() && error.contains("error")) << reply.body;
    EXPECT_THAT(error["error"]["message"].get<std::string>(), HasSubstr(message));
    EXPECT_EQ(error["error"]["type"], "invalid_request_error");
    EXPECT_TRUE(error["error"].contains("param") && error["error"].contains("code"));
  }

  static std::unique_ptr<RunningServer> server;
};
std::unique_ptr<RunningServer> Malformed::server;

struct BadBody {
  const char* path;
  std::string body;
  int status;
  const char* message;
};

constexpr char kText[] = "/v1/completions", kChat[] = "/v1/chat/completions";

TEST_F(Malformed, BodiesAreRefusedWithTheFieldAndTheFix) {
  const std::vector<BadBody> cases = {
      {kText, "", 400, "The body is empty. Send a JSON object."},
      {kText, "{", 400, "not valid JSON"},
      {kText, "{\"prompt\": \"a\",}", 400, "not valid JSON"},
      {kText, "prompt=a", 400, "not valid JSON"},
      {kText, "[]", 400, "The body is a list of 0. Send a JSON object."},
      {kText, "3", 400, "The body is 3."},
      {kText, "null", 400, "The body is null."},
      {kText, "{\"prompt\": \"\xff\"}", 400, "not valid JSON in UTF-8"},
      {kText, "{\"prompt\": \"\\ud800\"}", 400, "not valid JSON"},
      {kText, std::string(5000, '['), 400, "nested 5000 deep"},
      {kText, "{\"temperature\": 1e999, \"prompt\": \"a\"}", 400, "not valid JSON"},
      {kText, "{}", 400, "prompt: is missing. Send a string"},
      {kText, R"({"prompt": null})", 400, "prompt: is missing"},
      {kText, R"({"prompt": ""})", 400, "prompt: a prompt is empty"},
      {kText, R"({"prompt": []})", 400, "prompt: a prompt is empty"},
      {kText, R"({"prompt": ["a", ""]})", 400, "prompt: a prompt is empty"},
      {kText, R"({"prompt": 7})", 400, "prompt: 7 is not a prompt"},
      {kText, R"({"prompt": {"a": 1}})", 400, "prompt: an object is not a prompt"},
      {kText, R"({"prompt": [1, "a"]})", 400, "prompt: \"a\" is not a token id"},
      {kText, R"({"prompt": [1, -1]})", 400, "-1 is not a token id. Use ids of 0 to 258"},
      {kText, R"({"prompt": [1, 259]})", 400, "259 is not a token id"},
      {kText, R"({"prompt": [1.5]})", 400, "1.5 is not a token id"},
      {kText, R"({"prompt": [18446744073709551615]})", 400, "is not a token id"},
      {kText, R"({"prompt": [["a"]]})", 400, "is not a token id"},
      {kText, R"({"prompt": ")" + std::string(501, 'a') + "\"}", 400,
       "A prompt has 501 tokens. Use at most 500."},
      {kText, R"({"prompt": ["a","a","a","a","a","a","a","a","a","a","a"], "n": 2})", 400,
       "11 prompts with n 2 are too many texts"},
      {kText, R"({"prompt": "a", "model": "gpt-9"})", 404,
       "There is no model 'gpt-9'. Use 'small'."},
      {kText, R"({"prompt": "a", "model": 4})", 400, "model: 4 is not a string"},
      {kText, R"({"prompt": "a", "max_tokens": -1})", 400,
       "max_tokens: -1 is out of range. Use a whole number from 0 to 100000."},
      {kText, R"({"prompt": "a", "max_tokens": 100001})", 400,
       "max_tokens: 100001 is out of range"},
      {kText, R"({"prompt": "a", "max_tokens": 1.5})", 400,
       "max_tokens: 1.5 is not a whole number"},
      {kText, R"({"prompt": "a", "max_tokens": "5"})", 400,
       "max_tokens: \"5\" is not a whole number"},
      {kText, R"({"prompt": "a", "max_tokens": 99999999999999999999})", 400, "max_tokens"},
      {kText, R"({"prompt": "a", "max_tokens": 18446744073709551615})", 400, "out of range"},
      {kText, R"({"prompt": "a", "n": 0})", 400, "n: 0 is out of range"},
      {kText, R"({"prompt": "a", "n": 1000000})", 400, "n: 1000000 is out of range"},
      {kText, R"({"prompt": "a", "temperature": -0.1})", 400, "temperature: -0.1 is out of range"},
      {kText, R"({"prompt": "a", "temperature": "hot"})", 400,
       "temperature: \"hot\" is not a number"},
      {kText, R"({"prompt": "a", "top_p": 0})", 400, "top_p: 0 keeps no token"},
      {kText, R"({"prompt": "a", "top_p": 1.01})", 400, "top_p: 1.01 is out of range"},
      {kText, R"({"prompt": "a", "top_k": -2})", 400, "top_k: -2 is out of range"},
      {kText, R"({"prompt": "a", "seed": 0.5})", 400, "seed: 0.5 is not a whole number"},
      {kText, R"({"prompt": "a", "seed": 99999999999999999999})", 400, "seed"},
      {kText, R"({"prompt": "a", "logprobs": 21})", 400, "logprobs: 21 is out of range"},
      {kText, R"({"prompt": "a", "logprobs": true})", 400, "logprobs: true is not a whole number"},
      {kText, R"({"prompt": "a", "echo": 1})", 400, "echo: 1 is not true or false"},
      {kText, R"({"prompt": "a", "stream": "yes"})", 400, "stream: \"yes\" is not true or false"},
      {kText, R"({"prompt": "a", "stop": 5})", 400, "stop: 5 is not a string"},
      {kText, R"({"prompt": "a", "stop": [""]})", 400, "stop: an entry is empty"},
      {kText, R"({"prompt": "a", "stop": ["a", null]})", 400, "stop: null is not a string"},
      {kText, R"({"prompt": "a", "stop": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]})", 400,
       "stop: has 17 entries. Use at most 16."},
      {kText, R"({"prompt": "a", "best_of": 3})", 400, "best_of: 3 is not n (1)"},
      {kText, R"({"prompt": "a", "suffix": "end"})", 400, "suffix: \"end\" is not supported"},
      {kText, R"({"prompt": "a", "presence_penalty": 2.5})", 400,
       "presence_penalty: 2.5 is out of range. Use a number from -2 to 2."},
      {kText, R"({"prompt": "a", "logit_bias": {"5": 1}})", 400, "logit_bias: an object is not"},
      {kText, R"({"prompt": "a", "repetition_penalty": 0})", 400, "repetition_penalty: 0"},
      {kText, R"({"prompt": "a", "stream_options": {}})", 400, "stream_options: needs stream"},
      {kText, R"({"prompt": "a", "stream": true, "stream_options": {"usage": true}})", 400,
       "Unknown field 'stream_options.usage'"},
      {kText, R"({"prompt": "a", "max_token": 4})", 400,
       "Unknown field 'max_token'; did you mean 'max_tokens'?"},
      {kText, R"({"prompt": "a", "messages": []})", 400, "Unknown field 'messages'"},
      {kChat, "{}", 400, "messages: is missing. Send a list of messages."},
      {kChat, R"({"messages": []})", 400, "messages: a list of 0 is not a list of 1 to"},
      {kChat, R"({"messages": "hello"})", 400, "messages: \"hello\" is not a list"},
      {kChat, R"({"messages": ["hello"]})", 400, "messages[0] is \"hello\". Send a JSON object."},
      {kChat, R"({"messages": [{"content": "a"}]})", 400, "messages[0].role: is missing"},
      {kChat, R"({"messages": [{"role": "robot", "content": "a"}]})", 400,
       "messages[0].role: 'robot' is not supported"},
      {kChat, R"({"messages": [{"role": "user"}]})", 400, "messages[0].content: is missing"},
      {kChat, R"({"messages": [{"role": "user", "content": 5}]})", 400,
       "content: 5 is not a string"},
      {kChat, R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", 400,
       "messages[0].content[0].type: 'image_url' is not supported. Use \"text\"."},
      {kChat, R"({"messages": [{"role": "user", "content": "a"}], "tools": [{}]})", 400, "tools"},
      {kChat, R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2})", 400,
       "top_logprobs: needs logprobs"},
      {kChat,
       R"({"response_format": {"type": "json_object"},)"
       R"( "messages": [{"role": "user", "content": "a"}]})",
       400, "response_format.type: \"json_object\" is not supported"},
      {"/tokenize", R"({"prompt": 5})", 400, "prompt: 5 is not a string"},
      {"/tokenize", R"({"text": "a"})", 400, "prompt: is missing"},
      {"/detokenize", R"({"tokens": "a"})", 400, "tokens: \"a\" is not a list. Send a list of"},
      {"/detokenize", R"({"tokens": {}})", 400, "tokens: "},
      {"/detokenize", R"({"tokens": [999]})", 400, "tokens: 999 is not a token id"},
      {"/v1/completionz", "{}", 404, "There is no /v1/completionz. Use"},
      {"/v1/models", "{}", 405, "Use GET for /v1/models."},
  };
  EXPECT_GE(cases.size(), 50u);
  for (const BadBody& bad : cases) {
    SCOPED_TRACE(bad.body.substr(0, 100));
    ExpectError(server->Post(bad.path, bad.body), bad.status, bad.message);
  }
  EXPECT_EQ(server->Post(kText, R"({"prompt": "a", "n": 99})").json()["error"]["param"], "n");
  ExpectHealthy();
}

std::string Head(const std::string& more,
                 const std::string& line = "POST /v1/completions HTTP/1.1") {
  return line + "\r\nHost: x\r\nConnection: close\r\n" + more + "\r\n";
}
constexpr char kIsJson[] = "Content-Type: application/json\r\n";

TEST_F(Malformed, RequestsThatAreNotHttp) {
  const std::string type = kIsJson;
  ExpectError(server->Get("/v1/completions"), 405, "Use POST for /v1/completions.");
  ExpectError(server->Raw(Head("Content-Type: text/plain\r\nContent-Length: 2\r\n") + "{}"), 415,
              "Use Content-Type: application/json.");
  ExpectError(
      server->Raw(Head("Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 2\r\n") +
                  "{}"),
      415, "Content-Type");
  ExpectError(server->Raw(Head(type)), 411, "no valid Content-Length");
  ExpectError(server->Raw(Head(type + "Content-Length: -5\r\n")), 411, "Content-Length");
  ExpectError(server->Raw(Head(type + "Content-Length: 999999999999999999999\r\n")), 413,
              "Use at most 20000 bytes.");
  ExpectError(server->Raw(Head(type + "Content-Length: 20001\r\n") + std::string(20001, ' ')), 413,
              "too large");
  ExpectError(server->Raw(Head(type + "Content-Encoding: gzip\r\nContent-Length: 2\r\n") + "{}"),
              415, "without compression");
  ExpectError(
      server->Raw(Head(type + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n"),
      400, "Send one of them");
  ExpectError(server->Raw(Head(type + "Transfer-Encoding: chunked\r\n") + "zz\r\n{}\r\n0\r\n\r\n"),
              400, "body");
  for (const char* bytes :
       {"\r\n\r\n", "hello\r\n\r\n", "GET\r\n\r\n", "\x16\x03\x01\x02\x00\x01\r\n\r\n",
        "POST /v1/completions HTTP/9.9\r\n\r\n", "GET /health HTTP/1.1\r\nno colon\r\n\r\n"}) {
    const Reply reply = server->Raw(bytes);
    EXPECT_TRUE(reply.status == 0 || reply.status == 400 || reply.status == 200) << reply.status;
  }
  ExpectHealthy();
}

// A client that sends without end, or nothing, is cut off.
TEST_F(Malformed, StreamsWithoutEndAndWithoutBeginning) {
  const std::string type = kIsJson;
  const auto seconds = [](const std::function<void()>& run) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const Reply line = server->Raw("GET /" + std::string(1 << 20, 'a'));
  EXPECT_TRUE(line.status == 0 || line.status == 400 || line.status == 414) << line.status;
  const Reply header = server->Raw("GET /health HTTP/1.1\r\nA: " + std::string(1 << 20, 'a'));
  EXPECT_TRUE(header.status == 0 || header.status == 400) << header.status;
  std::string headers = "GET /health HTTP/1.1\r\n";
  for (int i = 0; i < 20000; ++i) headers += "A" + std::to_string(i) + ": b\r\n";
  const Reply many = server->Raw(headers + "\r\n");
  EXPECT_TRUE(many.status == 0 || many.status == 400) << many.status;
  std::string chunks;
  for (int i = 0; i < 3000; ++i) chunks += "10\r\n" + std::string(16, ' ') + "\r\n";
  ExpectError(server->Raw(Head(type + "Transfer-Encoding: chunked\r\n") + chunks), 413,
              "too large");
  const Reply one_chunk = server->Raw(Head(type + "Transfer-Encoding: chunked\r\n") +
                                      "ffffffff\r\n" + std::string(1 << 20, ' '));
  EXPECT_TRUE(one_chunk.status == 0 || one_chunk.status == 413) << one_chunk.status;

  // receive_seconds is 2.
  EXPECT_LT(seconds([&] { server->Raw(""); }), 15);
  EXPECT_LT(seconds([&] { server->Raw("GET /hea"); }), 15);
  EXPECT_LT(seconds([&] {
              ExpectError(server->Raw(Head(type + "Content-Length: 100\r\n") + "{"), 400,
                          "ended early or came too slowly");
            }),
            15);
  ExpectHealthy();
}

// A client that leaves frees its row, of a stream and of a whole answer. One that leaves before its
// request is complete does no harm.
TEST_F(Malformed, EarlyDisconnectsFreeTheRow) {
  for (const bool stream : {true, false}) {
    const std::string body = json{
        {"prompt", "a"},
        {"max_tokens", 100'000},
        {"ignore_eos", true},
        {"stream", stream}}.dump();
    const std::string bytes =
        Head(std::string(kIsJson) + "Content-Length: " + std::to_string(body.size()) + "\r\n") +
        body;
    std::vector<int> sockets;
    for (int i = 0; i < 6; ++i) sockets.push_back(server->Open(bytes));
    EXPECT_TRUE(server->WaitForMetric("halflife_texts_active", 6));
    for (const int socket : sockets) ::close(socket);
    ::close(server->Open(bytes.substr(0, bytes.size() - 5)));
    ::close(server->Open(bytes));
    EXPECT_TRUE(server->WaitForMetric("halflife_texts_active", 0));
    EXPECT_LT(server->Metric("halflife_generated_tokens_total"), 600'000) << "they did not finish";
    ExpectHealthy();
  }
}

// More idle connections than the server serves at a time do not stop it.
TEST_F(Malformed, IdleConnectionsAreClosed) {
  std::vector<std::thread> idle;
  for (int i = 0; i < 40; ++i) idle.emplace_back([] { server->Raw(""); });
  ExpectHealthy();
  for (std::thread& thread : idle) thread.join();
}

}  // namespace
}  // namespace halflife::serve::test
