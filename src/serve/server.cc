#include "serve/server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/concat.h"
#include "core/error.h"
#include "core/json_text.h"
#include "core/log.h"
#include "core/threads.h"
#include "serve/answer.h"
#include "serve/fields.h"
#include "serve/http_server.h"
#include "serve/metrics.h"

namespace halflife::serve {
namespace {

using Json = nlohmann::ordered_json;
using Clock = Mailbox::Clock;

constexpr auto kLook = std::chrono::milliseconds(200);  // Between looks at the client.

Clock::duration SecondsOf(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

ApiLimits LimitsOf(const ServerConfig& config, const model::LanguageModel& model,
                   const data::Tokenizer& tokenizer) {
  const int64_t positions = model.max_positions();
  return {.vocab_size = tokenizer.vocab_size(),
          .max_prompt_tokens = positions > 0 ? std::min(positions, config.max_prompt_tokens)
                                             : config.max_prompt_tokens,
          .max_new_tokens = config.max_new_tokens,
          .max_texts = std::max<int64_t>(config.engine.max_queued, 1),
          .model = config.model_name};
}

std::string NewId(const char* prefix) {
  std::random_device device;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string id = prefix;
  for (int i = 0; i < 3; ++i)
    for (uint32_t bits = device(), j = 0; j < 8; ++j, bits >>= 4) id += kDigits[bits & 15];
  return id;
}

// Returns the text of eos in /tokenizer_info and /tokenize: its name in the tokenizer if that is in
// the list below.
std::string EosName(const data::Tokenizer& tokenizer) {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<eos>"})
    if (tokenizer.Encode(name, data::SpecialTokens::kParse) ==
        std::vector<int32_t>{tokenizer.eos_id()})
      return name;
  return "</s>";
}

void SetJson(httplib::Response& response, const Json& json) {
  response.set_content(JsonText(json) + "\n", "application/json");
}
void SetError(httplib::Response& response, const ApiError& error) {
  response.status = error.status();
  if (error.status() == 429 || error.status() == 503) response.set_header("Retry-After", "1");
  response.set_content(error.Body(), "application/json");
}

}  // namespace

// The handlers. A running request is shared by its handler and the provider of its stream.
class Server::Service {
 public:
  Service(const model::LanguageModel& model, const data::Tokenizer& tokenizer,
          data::ChatTemplate chat, const ServerConfig& config)
      : tokenizer_(tokenizer),
        chat_(std::move(chat)),
        config_(config),
        limits_(LimitsOf(config, model, tokenizer)),
        eos_name_(EosName(tokenizer)),
        engine_(model, config.engine),
        http_({.max_body_bytes = config.max_body_bytes,
               .max_connections = config.max_connections,
               .request_seconds = config.receive_seconds},
              [](int status, const std::string& message) {
                return ApiError(status, message).Body();
              }) {
    AddRoutes();
  }

  int Bind(const std::string& host, int port) { return http_.Bind(host, port); }
  void Run(const std::function<bool()>& stop);

 private:
  struct Running {
    ApiCall call;
    std::shared_ptr<Mailbox> mailbox;
    std::unique_ptr<Answer> answer;
    Stopwatch watch;
    Clock::time_point deadline;
    bool told_first_token = false;
    std::atomic<int64_t>& count;
    explicit Running(std::atomic<int64_t>& running_count) : count(running_count) { ++count; }
    ~Running() {
      if (mailbox != nullptr) mailbox->Cancel();
      --count;
    }
  };

  void AddRoutes();
  void AddPost(const std::string& path,
               std::function<void(const HttpRequest&, httplib::Response&)> handler);
  void AddGet(const std::string& path,
              std::function<void(const HttpRequest&, httplib::Response&)> handler);
  void Complete(const HttpRequest& request, bool is_chat, httplib::Response& response);
  std::shared_ptr<Running> Start(const std::string& body, bool is_chat);
  EngineText TextOf(const ApiCall& call, size_t index) const;
  // Returns the next event, or nothing after kLook. Throws ApiError if the request cannot go on.
  std::optional<TextEvent> Next(Running& running, const HttpConnection& connection);
  // Sends what there is. Returns false once the stream has ended.
  bool StreamSome(Running& running, const HttpConnection& connection, httplib::DataSink& sink);
  Json ModelCard() const;
  void Tokenize(const std::string& body, httplib::Response& response) const;
  void Detokenize(const std::string& body, httplib::Response& response) const;

  const data::Tokenizer& tokenizer_;
  const data::ChatTemplate chat_;
  const ServerConfig config_;
  const ApiLimits limits_;
  const std::string eos_name_;
  const int64_t started_ = UnixMilliseconds() / 1000;
  std::atomic<int64_t> num_running_ = 0;
  Engine engine_;
  Metrics metrics_;
  HttpServer http_;
};

Server::Server(const model::LanguageModel& model, const data::Tokenizer& tokenizer,
               data::ChatTemplate chat, const ServerConfig& config)
    : service_(std::make_unique<Service>(model, tokenizer, std::move(chat), config)) {}
Server::~Server() = default;

int Server::Bind(const std::string& host, int port) { return service_->Bind(host, port); }
void Server::Run(const std::function<bool()>& stop) { service_->Run(stop); }

void Server::Service::AddRoutes() {
  AddPost("/v1/completions", [this](const HttpRequest& request, httplib::Response& response) {
    Complete(request, /*is_chat=*/false, response);
  });
  AddPost("/v1/chat/completions", [this](const HttpRequest& request, httplib::Response& response) {
    Complete(request, /*is_chat=*/true, response);
  });
  AddPost("/tokenize", [this](const HttpRequest& request, httplib::Response& response) {
    Tokenize(request.body, response);
  });
  AddPost("/detokenize", [this](const HttpRequest& request, httplib::Response& response) {
    Detokenize(request.body, response);
  });
  AddGet("/v1/models", [this](const HttpRequest&, httplib::Response& response) {
    SetJson(response, {{"object", "list"}, {"data", Json::array({ModelCard()})}});
  });
  AddGet("/v1/models/" + limits_.model, [this](const HttpRequest&, httplib::Response& response) {
    SetJson(response, ModelCard());
  });
  AddGet("/tokenizer_info", [this](const HttpRequest&, httplib::Response& response) {
    SetJson(response, {{"kind", tokenizer_.kind()},
                       {"vocab_size", tokenizer_.vocab_size()},
                       {"eos_token", eos_name_},
                       {"bos_token", nullptr},
                       {"pad_token", nullptr}});
  });
  AddGet("/health", [this](const HttpRequest&, httplib::Response& response) {
    if (engine_.stopping()) throw ApiError(503, "The server is stopping.");
    SetJson(response, {{"status", "ok"}});
  });
  AddGet("/metrics", [this](const HttpRequest&, httplib::Response& response) {
    response.set_content(metrics_.Text(engine_.stats()), "text/plain; version=0.0.4");
  });
}

void Server::Service::AddPost(const std::string& path,
                              std::function<void(const HttpRequest&, httplib::Response&)> handler) {
  http_.Post(path, [this, path, handler](const HttpRequest& request, httplib::Response& response) {
    const Stopwatch watch;
    try {
      handler(request, response);
    } catch (const ApiError& error) {
      SetError(response, error);
    } catch (const std::exception& error) {
      HL_ERROR("serve", path, ": ", error.what());
      SetError(response, ApiError(500, "The server failed. Its log has the cause."));
    }
    metrics_.CountRequest(path, response.status == -1 ? 200 : response.status, watch.Seconds());
  });
}

void Server::Service::AddGet(const std::string& path,
                             std::function<void(const HttpRequest&, httplib::Response&)> handler) {
  http_.Get(path, [handler](const HttpRequest& request, httplib::Response& response) {
    try {
      handler(request, response);
    } catch (const ApiError& error) {
      SetError(response, error);
    }
  });
}

Json Server::Service::ModelCard() const {
  return {{"id", limits_.model},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "halflife"},
          {"max_model_len", limits_.max_prompt_tokens}};
}

EngineText Server::Service::TextOf(const ApiCall& call, size_t index) const {
  const size_t choice = index % static_cast<size_t>(call.num_choices);
  const ApiPrompt& prompt = call.prompts[index / static_cast<size_t>(call.num_choices)];
  infer::TextRequest request = {.prompt = prompt.ids,
                                .max_tokens = call.max_tokens,
                                .end_ids = call.stop_ids,
                                .vocab_size = tokenizer_.vocab_size(),
                                .sampler = call.sampler,
                                .top_logprobs = call.top_logprobs,
                                .score_prompt = call.echo && call.top_logprobs >= 0};
  if (!call.ignore_eos) request.end_ids.push_back(tokenizer_.eos_id());
  request.sampler.seed += choice;  // The choices of a prompt differ.
  return {.request = std::move(request), .stream = infer::TextStream(tokenizer_, call.stops)};
}

std::shared_ptr<Server::Service::Running> Server::Service::Start(const std::string& body,
                                                                 bool is_chat) {
  auto running = std::make_shared<Running>(num_running_);
  running->call = is_chat ? ReadChatCompletion(body, limits_, tokenizer_, chat_)
                          : ReadCompletion(body, limits_, tokenizer_);
  running->deadline = Clock::now() + SecondsOf(config_.request_seconds);
  running->answer =
      std::make_unique<Answer>(running->call,
                               AnswerNames{.id = NewId(is_chat ? "chatcmpl-" : "cmpl-"),
                                           .model = limits_.model,
                                           .created = UnixMilliseconds() / 1000},
                               tokenizer_);
  std::vector<EngineText> texts;
  for (size_t i = 0; i < static_cast<size_t>(running->call.num_texts()); ++i)
    texts.push_back(TextOf(running->call, i));
  running->mailbox = engine_.Submit(std::move(texts));
  if (running->mailbox == nullptr) {
    if (engine_.stopping()) throw ApiError(503, "The server is stopping.");
    throw ApiError(429, "Too many requests wait. Send the request again later.", {},
                   "too_many_requests");
  }
  return running;
}

std::optional<TextEvent> Server::Service::Next(Running& running, const HttpConnection& connection) {
  if (!connection.IsOpen()) throw ApiError(499, "The client closed the connection.");
  std::optional<TextEvent> event =
      running.mailbox->Wait(std::min(running.deadline, Clock::now() + kLook));
  if (event) {
    if (event->token && !running.told_first_token) {
      metrics_.CountFirstToken(running.watch.Seconds());
      running.told_first_token = true;
    }
    return event;
  }
  if (Clock::now() >= running.deadline)
    throw ApiError(504,
                   Concat("The request took longer than ", config_.request_seconds,
                          " s. Ask for fewer tokens."),
                   {}, "timeout");
  return std::nullopt;
}

void Server::Service::Complete(const HttpRequest& request, bool is_chat,
                               httplib::Response& response) {
  const std::shared_ptr<Running> running = Start(request.body, is_chat);
  HttpConnection& connection = request.connection;
  if (running->call.stream) {
    response.set_header("Cache-Control", "no-cache");
    response.set_chunked_content_provider(
        "text/event-stream", [this, running, &connection](size_t, httplib::DataSink& sink) {
          return StreamSome(*running, connection, sink);
        });
    return;
  }
  Answer& answer = *running->answer;
  while (!answer.done())
    if (const auto event = Next(*running, connection)) answer.Add(*event);
  if (!answer.error().empty()) throw ApiError(500, "The text failed: " + answer.error() + ".");
  response.set_content(answer.Whole(), "application/json");
}

bool Server::Service::StreamSome(Running& running, const HttpConnection& connection,
                                 httplib::DataSink& sink) {
  Answer& answer = *running.answer;
  std::string chunks;
  bool ends = false;
  try {
    if (const auto event = Next(running, connection)) chunks = answer.Add(*event);
    if (!answer.error().empty()) throw ApiError(500, "The text failed: " + answer.error() + ".");
    ends = answer.done();
    if (ends) chunks += answer.LastChunks();
  } catch (const ApiError& error) {
    if (error.status() == 499) return false;
    std::string body = error.Body();
    body.pop_back();  // The line break.
    chunks = ServerSentEvent(body);
    ends = true;
  }
  if (!chunks.empty() && !sink.write(chunks.data(), chunks.size())) return false;
  if (ends) sink.done();
  return true;
}

void Server::Service::Tokenize(const std::string& body, httplib::Response& response) const {
  Fields fields(body);
  fields.Only("model", limits_.model);
  fields.Require("prompt", "a string");
  const std::string prompt = *fields.String("prompt");
  const bool from_start = fields.Boolean("add_special_tokens").value_or(true);
  fields.RejectOthers();
  constexpr auto kParse = data::SpecialTokens::kParse;
  const std::vector<int32_t> ids = prompt == eos_name_ ? std::vector<int32_t>{tokenizer_.eos_id()}
                                   : from_start        ? tokenizer_.EncodeText(prompt, kParse)
                                                       : tokenizer_.Encode(prompt, kParse);
  SetJson(response,
          {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", limits_.max_prompt_tokens}});
}

void Server::Service::Detokenize(const std::string& body, httplib::Response& response) const {
  Fields fields(body);
  fields.Only("model", limits_.model);
  const nlohmann::json& tokens = fields.Require("tokens", "a list of token ids");
  if (!tokens.is_array())
    fields.Refuse("tokens", Concat(Shown(tokens), " is not a list. Send a list of token ids."));
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : tokens) {
    if (!id.is_number_unsigned() ||
        id.get<uint64_t>() >= static_cast<uint64_t>(tokenizer_.vocab_size()))
      fields.Refuse("tokens", Concat(Shown(id), " is not a token id. Use ids of 0 to ",
                                     tokenizer_.vocab_size() - 1, "."));
    ids.push_back(id.get<int32_t>());
  }
  fields.RejectOthers();
  SetJson(response, {{"prompt", tokenizer_.Decode(ids)}});
}

void Server::Service::Run(const std::function<bool()>& stop) {
  std::atomic<bool> engine_ended = false;
  bool accept_failed = false;  // Before `stop`. Written by the guard and read after its end.
  // Waits for `stop` or the end of the listener, then gives running requests their time.
  std::thread guard = StartThread([&] {
    while (!stop() && !engine_ended && !accept_failed) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      accept_failed = http_.accept_failed();
    }
    engine_.Stop();
    const auto until = Clock::now() + SecondsOf(config_.drain_seconds);
    while (!engine_ended && Clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    engine_.CancelAll();
  });
  std::thread listener;
  try {
    listener = StartThread([this] { http_.Listen(); });
  } catch (...) {
    engine_ended = true;
    guard.join();
    throw;
  }
  const auto finish = [&] {
    engine_ended = true;
    guard.join();
    // All texts have ended, but their answers may still be on the way. The library cuts streams
    // off when it stops.
    const auto until = Clock::now() + std::chrono::seconds(10);
    while (num_running_ > 0 && Clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    http_.Stop();
    listener.join();
  };
  try {
    engine_.Run();
  } catch (...) {
    finish();
    throw;
  }
  finish();
  HL_CHECK_AS(ExitCode::kEnvironment, !accept_failed,
              "the server no longer accepts connections: accept failed. Check the system's open "
              "files (sysctl fs.file-nr) and its free memory, then start it again.");
}

}  // namespace halflife::serve
