// `halflife serve` as a user starts and stops it. Its answers are those of generate and score.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <future>
#include <regex>
#include <thread>

#include "support/program_test.h"

namespace halflife::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Serve : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    ExpectExit(fixture->Run({.run = "run", .set = {"train.steps=60", "ckpt.every=0"}}), 0);
  }
  // Starts the server and waits for its port.
  void Start(const std::string& more = "", const std::string& model = "run") {
    const std::string script = "echo $$ > '" + Path("pid") + "'; exec '" + std::string(kProgram) +
                               "' serve --model '" + Path(model) + "' --port 0 " + more + " 2> '" +
                               Path("log") + "'";
    process_ = std::async(std::launch::async, [script] {
      return RunCommand({"sh", "-c", script});
    });
    const std::regex place(R"(listening at http://127\.0\.0\.1:(\d+)/v1)");
    for (int i = 0; i < 600 && port_ == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::smatch match;
      const std::string log = Read("log");
      if (std::regex_search(log, match, place)) port_ = std::stoi(match[1]);
    }
    ASSERT_NE(port_, 0) << Read("log");
  }
  void Signal(int signal) { ::kill(std::stoi(Read("pid")), signal); }
  int Stop(int signal) {
    Signal(signal);
    return process_.get().exit_code;
  }
  // Starts a request that runs for the time that a stopping server gives it.
  std::future<void> PostLong() const {
    std::future<void> answer = std::async(std::launch::async, [port = port_] {
      httplib::Client client("127.0.0.1", port);
      client.set_read_timeout(100);
      const json body = {{"prompt", "a"}, {"max_tokens", 10'000'000}, {"ignore_eos", true}};
      client.Post("/v1/completions", body.dump(), "application/json");
    });
    httplib::Client client("127.0.0.1", port_);
    for (int i = 0; i < 600; ++i) {
      const httplib::Result metrics = client.Get("/metrics");
      if (metrics && metrics->body.find("halflife_texts_active 1") != std::string::npos) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return answer;
  }
  json Post(const std::string& path, const json& body) const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(100);
    const httplib::Result result = client.Post(path.c_str(), body.dump(), "application/json");
    if (!result) return {};
    EXPECT_EQ(result->status, 200) << result->body;
    return json::parse(result->body);
  }

  std::future<RunResult> process_;
  int port_ = 0;
};

TEST_F(Serve, AnswersAreThoseOfGenerateAndScore) {
  Start("--name tiny");
  std::ofstream(fixture->path("prompts.jsonl")) << "\"the river\"\n";
  const json text = json::parse(
      ExpectExit(Halflife({"generate", "--model", Path("run"), "--prompts", Path("prompts.jsonl"),
                           "--max-tokens", "40", "--temperature", "0.5", "--seed", "3"}),
                 0)
          .out);
  const json answer = Post("/v1/completions", {{"model", "tiny"},
                                               {"prompt", "the river"},
                                               {"max_tokens", 40},
                                               {"temperature", 0.5},
                                               {"seed", 3}});
  EXPECT_EQ(answer["choices"][0]["text"], text["text"]);

  std::ofstream(fixture->path("scored.txt")) << "the river and the sea";
  const json score = json::parse(ExpectExit(Halflife({"score", "--model", Path("run"), "--text",
                                                      Path("scored.txt"), "--out", "-"}),
                                            0)
                                     .out);
  const json echoed = Post("/v1/completions", {{"prompt", {score["ids"]}},
                                               {"max_tokens", 0},
                                               {"logprobs", 1},
                                               {"echo", true}})["choices"][0];
  EXPECT_EQ(echoed["text"], "the river and the sea");
  const json& logprobs = echoed["logprobs"]["token_logprobs"];
  ASSERT_EQ(logprobs.size(), score["ids"].size());
  for (size_t i = 1; i < logprobs.size(); ++i)
    EXPECT_NEAR(logprobs[i].get<double>(), score["logprobs"][i - 1].get<double>(), 1e-4);

  const json chat =
      Post("/v1/chat/completions",
           {{"messages", {{{"role", "user"}, {"content", "hello"}}}}, {"max_tokens", 5}});
  EXPECT_EQ(chat["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(Stop(SIGTERM), 0);
  EXPECT_THAT(Read("log"), HasSubstr("stopped"));
}

// `timeout` sends one SIGTERM to the process and one to its group.
TEST_F(Serve, SignalsWithinASecondAreOne) {
  Start("--max-new-tokens 100000000 --drain-seconds 3", "run@latest");
  EXPECT_THAT(Read("log"), HasSubstr("as model 'run'"));
  const std::future<void> answer = PostLong();
  Signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(Stop(SIGTERM), 0);
  EXPECT_THAT(Read("log"), HasSubstr("stopped"));
}

TEST_F(Serve, ALaterSignalEndsItAtOnce) {
  Start("--max-new-tokens 100000000 --drain-seconds 600");
  const std::future<void> answer = PostLong();
  Signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  EXPECT_EQ(Stop(SIGTERM), 128 + SIGTERM);
}

TEST_F(Serve, ASecondCtrlCEndsItAtOnce) {
  Start("--max-new-tokens 100000000 --drain-seconds 600");
  const std::future<void> answer = PostLong();
  Signal(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(Stop(SIGINT), 128 + SIGINT);
}

TEST_F(Serve, AnotherServerHasThePort) {
  Start();
  // The port is checked first: loading a large model can take minutes.
  ExpectExit(Halflife({"serve", "--model", Path("absent"), "--port", std::to_string(port_)}), 4,
             {"cannot listen at 127.0.0.1:" + std::to_string(port_), "--port 0"});
  EXPECT_EQ(Stop(SIGINT), 0);
}

TEST_F(Serve, BadFlags) {
  ExpectExit(Halflife({"serve", "--model", Path("run"), "--port", "70000"}), 2, {"--port"});
  ExpectExit(Halflife({"serve", "--model", Path("run"), "--chat-template", "mine"}), 2,
             {"'mine' is none of chatml"});
  ExpectExit(Halflife({"serve", "--model", Path("run"), "--host", "no.such.host.invalid"}), 4,
             {"cannot listen at no.such.host.invalid:8080"});
}

}  // namespace
}  // namespace halflife::test
