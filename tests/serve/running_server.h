// A server of a small model with random weights, on a free port of the loopback address.
//
//   RunningServer server({.max_new_tokens = 100});
//   const nlohmann::json answer = server.PostJson("/v1/completions", {{"prompt", "a"}});
#pragma once

#include <httplib.h>

#include <atomic>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "data/tokenizer.h"
#include "model/language_model.h"
#include "serve/server.h"

namespace halflife::serve::test {

struct Reply {
  int status = 0;  // 0: no answer.
  std::string body;
  nlohmann::json json() const;
};

class RunningServer {
 public:
  explicit RunningServer(ServerConfig config = {}, const std::string& mixer = "gla");
  ~RunningServer() { Stop(); }

  int port() const { return port_; }
  const model::LanguageModel& model() const { return model_; }
  const data::Tokenizer& tokenizer() const { return *tokenizer_; }

  Reply Get(const std::string& path) const;
  Reply Post(const std::string& path, const std::string& body) const;
  // Expects status 200.
  nlohmann::json PostJson(const std::string& path, const nlohmann::json& body) const;
  // Sends bytes on a new connection, and reads until the server closes it. Reply::status is parsed
  // from the first line.
  Reply Raw(const std::string& bytes) const;
  // Sends bytes on a new connection and returns its socket, which the caller closes.
  int Open(const std::string& bytes) const;
  // Returns the value of a metric without labels.
  double Metric(const std::string& name) const;
  // Waits up to ten seconds until the metric has the value.
  bool WaitForMetric(const std::string& name, double value) const;
  // Requests the end, as SIGTERM does.
  void RequestStop() { stop_ = true; }
  void Stop();
  // Waits up to a minute until the server ends by itself, and throws the Error of Server::Run.
  void WaitForEnd();

 private:
  model::LanguageModel model_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::unique_ptr<Server> server_;
  std::atomic<bool> stop_ = false, ended_ = false;
  std::exception_ptr failure_;  // Of Server::Run. Read it after the end of the thread.
  int port_ = 0;
  std::thread thread_;
};

// Returns the data of the events of a stream, in order; "[DONE]" is left out, and must be the last
// one.
std::vector<nlohmann::json> StreamedEvents(const std::string& body);

}  // namespace halflife::serve::test
