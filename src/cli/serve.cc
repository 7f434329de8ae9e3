// halflife serve: answers requests in OpenAI's form over HTTP.
#include <ATen/Parallel.h>

#include <atomic>
#include <csignal>
#include <iostream>

#include "cli/command_line/options.h"
#include "cli/model_source.h"
#include "cli/world.h"
#include "core/log.h"
#include "data/chat/chat_template.h"
#include "serve/http_server.h"
#include "serve/server.h"

namespace halflife::cli {
namespace {

// A signal handler can reach only a global variable.
std::atomic<int> serve_signals = 0;

extern "C" void CountServeSignal(int signal) {
  if (++serve_signals > 1) std::_Exit(128 + signal);
}

}  // namespace

ExitCode Run(const ServeOptions& options) {
  serve::HttpServer::RequireFree(options.host, options.port);
  at::set_num_threads(options.threads);
  WarnOfBusyCores(options.threads);
  const infer::LoadedModel loaded =
      LoadAnyModel(options.model, options.tokenizer, PlacementOf(options.compute));
  const data::Tokenizer& tokenizer = infer::RequireTokenizer(loaded);
  serve::ServerConfig config = options.server;
  if (config.model_name.empty())
    config.model_name = std::filesystem::weakly_canonical(options.model).filename().string();
  serve::Server server(*loaded.model, tokenizer, ChatTemplateOf(options.chat_template, tokenizer),
                       config);
  const int port = server.Bind(options.host, options.port);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGINT, CountServeSignal);
  std::signal(SIGTERM, CountServeSignal);
  HL_INFO("serve", "listening at http://", options.host, ":", port, "/v1 as model '",
          config.model_name, "'");
  server.Run([] { return serve_signals > 0; });
  HL_INFO("serve", "stopped");
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
