// halflife serve: answers requests in OpenAI's form over HTTP.
#include <ATen/Parallel.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "cli/command_line/options.h"
#include "cli/model_source.h"
#include "cli/world.h"
#include "core/log.h"
#include "data/chat/chat_template.h"
#include "serve/http_server.h"
#include "serve/server.h"

namespace halflife::cli {
namespace {

using Clock = std::chrono::steady_clock;

// A signal handler can reach only global variables.
std::atomic<int> serve_interrupts = 0;
std::atomic<Clock::rep> first_serve_signal = 0;  // Of Clock. 0: there was none.

// The first signal stops the server. A second one ends the process at once if it is a second
// SIGINT, or comes more than a second later. An earlier SIGTERM is ignored, because `timeout` and
// Slurm may send SIGTERM several times, to the process and to its group.
extern "C" void HandleServeSignal(int signal) {
  const Clock::rep now = Clock::now().time_since_epoch().count();
  Clock::rep first = 0;
  const bool is_first = first_serve_signal.compare_exchange_strong(first, now);
  const bool interrupts_again = signal == SIGINT && ++serve_interrupts > 1;
  const bool is_late = !is_first && Clock::duration(now - first) > std::chrono::seconds(1);
  if (interrupts_again || is_late) std::_Exit(128 + signal);
}

// Returns the name of the folder of --model, without the step of RUN@STEP.
std::string FolderName(const std::filesystem::path& model) {
  std::string folder = model.string();
  if (!std::filesystem::exists(model)) folder = folder.substr(0, folder.rfind('@'));
  return std::filesystem::weakly_canonical(folder).filename().string();
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
  if (config.model_name.empty()) config.model_name = FolderName(options.model);
  serve::Server server(*loaded.model, tokenizer, ChatTemplateOf(options.chat_template, tokenizer),
                       config);
  const int port = server.Bind(options.host, options.port);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGINT, HandleServeSignal);
  std::signal(SIGTERM, HandleServeSignal);
  HL_INFO("serve", "listening at http://", options.host, ":", port, "/v1 as model '",
          config.model_name, "'");
  server.Run([] { return first_serve_signal != 0; });
  HL_INFO("serve", "stopped");
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
