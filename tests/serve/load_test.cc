// Many requests at once: the same digits as one after the other, limits of the queue, and the end
// of the server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "serve/running_server.h"
#include "support/expect_error.h"

namespace halflife::serve::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct MixedRequest {
  std::string path;
  json body;
};

// Returns completions and chats, whole and streamed, with and without scores, of all lengths.
std::vector<MixedRequest> MixedRequests(int count) {
  std::mt19937_64 random(11);
  const auto below = [&](uint64_t limit) { return static_cast<int64_t>(random() % limit); };
  std::vector<MixedRequest> requests;
  for (int i = 0; i < count; ++i) {
    std::string text = i % 5 == 0 ? std::string(120, 'z') : "";  // Prefixes that are kept.
    for (int64_t more = 1 + below(90); more > 0; --more) text += static_cast<char>('a' + below(26));
    json body = {{"max_tokens", 1 + below(24)}, {"seed", below(1000)}, {"n", 1 + below(3)}};
    if (below(2) == 0) body["temperature"] = 0.7;
    if (below(3) == 0) body["stop"] = {"e", "th"};
    if (below(2) == 0) body["stream"] = true;
    const bool chat = below(3) == 0;
    if (chat) {
      body["messages"] = {{{"role", "user"}, {"content", text}}};
      if (below(2) == 0) body["logprobs"] = true, body["top_logprobs"] = 2;
    } else {
      body["prompt"] = below(2) == 0 ? json(text) : json{text, text.substr(text.size() / 2)};
      if (below(2) == 0) body["logprobs"] = below(4);
      if (below(2) == 0) body["echo"] = true;
    }
    requests.push_back({chat ? "/v1/chat/completions" : "/v1/completions", body});
  }
  return requests;
}

// Returns the part of a reply that must be equal: the choices of an answer, or those of all events
// of each text.
json Choices(const Reply& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  if (!reply.body.starts_with("data: ")) return reply.json()["choices"];
  json texts = json::object();
  for (const json& event : StreamedEvents(reply.body))
    for (const json& choice : event["choices"])
      texts[std::to_string(choice["index"].get<int>())].push_back(choice);
  return texts;
}

class Load : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Mixers, Load, testing::Values("gla", "softmax"));

TEST_P(Load, TwoHundredRequestsAtOnceHaveTheDigitsOfOneAfterTheOther) {
  constexpr int kRequests = 200;
  const std::vector<MixedRequest> requests = MixedRequests(kRequests);
  RunningServer server(
      {.engine = {.batch = {.max_texts = 21, .prefix = {.max_bytes = 1 << 20, .chunk = 32}},
                  .max_queued = 2000}},
      GetParam());
  std::vector<json> alone;
  for (const MixedRequest& request : requests)
    alone.push_back(Choices(server.Post(request.path, request.body.dump())));
  std::vector<std::future<Reply>> replies;
  for (const MixedRequest& request : requests)
    replies.push_back(std::async(std::launch::async,
                                 [&] { return server.Post(request.path, request.body.dump()); }));
  for (size_t i = 0; i < requests.size(); ++i)
    ASSERT_EQ(Choices(replies[i].get()), alone[i])
        << "request " << i << ": " << requests[i].body.dump();
  EXPECT_EQ(server.Metric("halflife_texts_active"), 0);
  EXPECT_LE(server.Metric("halflife_prefix_bytes"), 1 << 20);
}

const json kLong = {{"prompt", "a"}, {"max_tokens", 2000}, {"ignore_eos", true}, {"seed", 1}};

TEST(Queue, AFullQueueIsAnsweredWith429) {
  RunningServer server({.engine = {.batch = {.max_texts = 1}, .max_queued = 2}});
  std::vector<std::future<Reply>> running;
  for (int i = 0; i < 3; ++i) {
    running.push_back(std::async(std::launch::async,
                                 [&] { return server.Post("/v1/completions", kLong.dump()); }));
    EXPECT_TRUE(server.WaitForMetric("halflife_texts_active", 1));
    EXPECT_TRUE(server.WaitForMetric("halflife_texts_queued", i));
  }
  const Reply refused = server.Post("/v1/completions", kLong.dump());
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.json()["error"]["message"].get<std::string>(), HasSubstr("later"));
  for (auto& reply : running) EXPECT_EQ(reply.get().status, 200);
}

// A client that leaves while its text waits makes room in the queue although no row is free.
TEST(Queue, ClientsThatLeaveMakeRoom) {
  RunningServer server(
      {.engine = {.batch = {.max_texts = 1}, .max_queued = 2}, .max_new_tokens = 10'000'000});
  const auto open = [&](int64_t max_tokens) {
    json body = kLong;
    body["max_tokens"] = max_tokens;
    const std::string text = body.dump();
    return server.Open(
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json"
        "\r\nContent-Length: " +
        std::to_string(text.size()) + "\r\n\r\n" + text);
  };
  const int first = open(10'000'000);
  EXPECT_TRUE(server.WaitForMetric("halflife_texts_active", 1));
  const std::vector<int> waiting = {open(1), open(1)};
  EXPECT_TRUE(server.WaitForMetric("halflife_texts_queued", 2));
  EXPECT_EQ(server.Post("/v1/completions", kLong.dump()).status, 429);
  for (const int socket : waiting) ::close(socket);
  EXPECT_TRUE(server.WaitForMetric("halflife_texts_queued", 0));
  EXPECT_EQ(server.Metric("halflife_texts_active"), 1);
  ::close(first);
  EXPECT_TRUE(server.WaitForMetric("halflife_texts_active", 0));
}

TEST(Timeouts, ARequestThatTakesTooLongEndsWith504) {
  RunningServer server({.max_new_tokens = 10'000'000, .request_seconds = 0.5});
  json body = kLong;
  body["max_tokens"] = 10'000'000;
  EXPECT_EQ(server.Post("/v1/completions", body.dump()).status, 504);
  body["stream"] = true;
  EXPECT_THAT(server.Post("/v1/completions", body.dump()).body,
              HasSubstr("The request took longer than 0.5 s."));
  EXPECT_TRUE(server.WaitForMetric("halflife_texts_active", 0));
}

TEST(Stopping, RunningRequestsAreAnsweredAndNewOnesRefused) {
  RunningServer server({.drain_seconds = 60});
  auto running =
      std::async(std::launch::async, [&] { return server.Post("/v1/completions", kLong.dump()); });
  EXPECT_TRUE(server.WaitForMetric("halflife_texts_active", 1));
  server.RequestStop();
  for (int i = 0; i < 100 && server.Get("/health").status == 200; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int refused = server.Post("/v1/completions", kLong.dump()).status;
  EXPECT_TRUE(refused == 503 || refused == 0) << refused;
  const Reply reply = running.get();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 2000);
  server.Stop();
}

TEST(Stopping, RequestsThatTakeTooLongAreCancelled) {
  RunningServer server({.max_new_tokens = 10'000'000, .drain_seconds = 0.2});
  json body = kLong;
  body["max_tokens"] = 10'000'000;
  auto running =
      std::async(std::launch::async, [&] { return server.Post("/v1/completions", body.dump()); });
  EXPECT_TRUE(server.WaitForMetric("halflife_texts_active", 1));
  server.Stop();
  const Reply reply = running.get();
  EXPECT_EQ(reply.status, 500);
  EXPECT_THAT(reply.body, HasSubstr("the server cancelled it. Send the request again"));
}

// Returns the socket of this process that listens at the port, or -1.
int ListeningSocket(int port) {
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_in address = {};
    size = sizeof address;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
        ntohs(address.sin_port) == port)
      return fd;
  }
  return -1;
}

// Without a listening socket a server would be of no use, but look alive to what supervises it.
TEST(Stopping, AServerThatAcceptsNoConnectionAnswersAndEndsWithAnError) {
  RunningServer server({.drain_seconds = 60});
  auto running =
      std::async(std::launch::async, [&] { return server.Post("/v1/completions", kLong.dump()); });
  EXPECT_TRUE(server.WaitForMetric("halflife_texts_active", 1));
  const int socket = ListeningSocket(server.port());
  ASSERT_GE(socket, 0);
  ASSERT_EQ(::shutdown(socket, SHUT_RDWR), 0);  // Its accept() fails with EINVAL.
  EXPECT_HL_ERROR(server.WaitForEnd(), ExitCode::kEnvironment,
                  "the server no longer accepts connections: accept failed. Check");
  const Reply reply = running.get();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.json()["usage"]["completion_tokens"], 2000);
}

}  // namespace
}  // namespace halflife::serve::test
