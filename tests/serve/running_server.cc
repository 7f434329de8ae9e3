#include "serve/running_server.h"

#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "data/chat/chat_template.h"
#include "model/mixer_forms.h"

namespace halflife::serve::test {
namespace {

model::ModelConfig SmallModel(const std::string& mixer) {
  return {.vocab_size = 259,
          .model_dim = 32,
          .num_layers = 2,
          .initializer_range = 0.2,
          .mixer = model::TestForms(mixer).front(),
          .channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", 48}})};
}

}  // namespace

nlohmann::json Reply::json() const {
  return nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
}

RunningServer::RunningServer(ServerConfig config, const std::string& mixer)
    : model_(SmallModel(mixer)), tokenizer_(data::MakeByteTokenizer()) {
  model_.BindOwnMemory(5, false);
  if (config.model_name.empty()) config.model_name = "small";
  server_ =
      std::make_unique<Server>(model_, *tokenizer_, data::RequireChatTemplate("chatml"), config);
  port_ = server_->Bind("127.0.0.1", 0);
  thread_ = std::thread([this] {
    at::set_num_threads(1);
    try {
      server_->Run([this] { return stop_.load(); });
    } catch (const Error&) {
      failure_ = std::current_exception();
    }
    ended_ = true;
  });
  for (int i = 0; i < 500 && Get("/health").status != 200; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

void RunningServer::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  EXPECT_TRUE(failure_ == nullptr) << "Server::Run threw an error that the test did not expect";
}

void RunningServer::WaitForEnd() {
  for (int i = 0; i < 6000 && !ended_; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(ended_) << "the server goes on";
  stop_ = true;
  thread_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

Reply RunningServer::Get(const std::string& path) const {
  httplib::Client client("127.0.0.1", port_);
  const httplib::Result result = client.Get(path.c_str());
  return result ? Reply{result->status, result->body} : Reply{};
}

Reply RunningServer::Post(const std::string& path, const std::string& body) const {
  httplib::Client client("127.0.0.1", port_);
  client.set_read_timeout(300);
  const httplib::Result result = client.Post(path.c_str(), body, "application/json");
  return result ? Reply{result->status, result->body}
                : Reply{0, "no answer: " + httplib::to_string(result.error())};
}

nlohmann::json RunningServer::PostJson(const std::string& path, const nlohmann::json& body) const {
  const Reply reply = Post(path, body.dump());
  EXPECT_EQ(reply.status, 200) << reply.body << "\nfor " << body.dump();
  return reply.json();
}

int RunningServer::Open(const std::string& bytes) const {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const timeval limit = {.tv_sec = 60, .tv_usec = 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t more = ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (more <= 0) break;  // The server may answer and close before it has all bytes.
    sent += static_cast<size_t>(more);
  }
  return socket;
}

Reply RunningServer::Raw(const std::string& bytes) const {
  const int socket = Open(bytes);
  std::string answer;
  char buffer[4096];
  while (true) {
    const ssize_t received = ::recv(socket, buffer, sizeof buffer, 0);
    if (received <= 0) break;
    answer.append(buffer, static_cast<size_t>(received));
  }
  ::close(socket);
  Reply reply;
  if (answer.starts_with("HTTP/1.1 ")) reply.status = std::stoi(answer.substr(9, 3));
  const size_t body = answer.find("\r\n\r\n");
  if (body != std::string::npos) reply.body = answer.substr(body + 4);
  return reply;
}

double RunningServer::Metric(const std::string& name) const {
  std::istringstream lines(Get("/metrics").body);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + " ")) return std::stod(line.substr(name.size()));
  ADD_FAILURE() << "no metric " << name;
  return -1;
}

bool RunningServer::WaitForMetric(const std::string& name, double value) const {
  for (int i = 0; i < 200; ++i) {
    if (Metric(name) == value) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

std::vector<nlohmann::json> StreamedEvents(const std::string& body) {
  std::vector<nlohmann::json> events;
  std::istringstream lines(body);
  bool done = false;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: ")) continue;
    EXPECT_FALSE(done) << "nothing follows [DONE]";
    done = line == "data: [DONE]";
    if (!done) events.push_back(nlohmann::json::parse(line.substr(6)));
  }
  EXPECT_TRUE(done) << body;
  return events;
}

}  // namespace halflife::serve::test
