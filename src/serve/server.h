// The server of a model: OpenAI's API over HTTP (docs/serving.md).
//
//   Server server(model, tokenizer, data::RequireChatTemplate("chatml"), {.model_name = "gla"});
//   server.Bind("127.0.0.1", 8080);
//   server.Run(stop_requested);   // Until stop_requested() returns true and all is answered.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "data/chat/chat_template.h"
#include "data/tokenizer.h"
#include "model/language_model.h"
#include "serve/server_config.h"

namespace halflife::serve {

class Server {
 public:
  // Borrows the model and the tokenizer.
  Server(const model::LanguageModel& model, const data::Tokenizer& tokenizer,
         data::ChatTemplate chat, const ServerConfig& config);
  ~Server();

  // Returns the port; 0 chooses one. Throws Error kEnvironment if it is not free, or if the system
  // cannot start max_connections threads.
  int Bind(const std::string& host, int port);
  // Answers requests. Once `stop` returns true (it is called several times per second), new
  // requests are refused, running ones have drain_seconds, and Run returns. If the system accepts
  // no more connections, does the same and then throws Error kEnvironment. Throws it at once if the
  // system cannot start two further threads. Computes on this thread, so that its LibTorch settings
  // apply.
  void Run(const std::function<bool()>& stop);

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

}  // namespace halflife::serve
