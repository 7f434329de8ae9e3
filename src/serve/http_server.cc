#include "serve/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "core/concat.h"
#include "core/error.h"
#include "core/threads.h"

namespace halflife::serve {
namespace {

std::chrono::steady_clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

// A fixed number of threads. The queue is short: when it is full, the caller (which accepts
// connections) waits, and further clients wait in the system's queue. `on_shutdown` is called when
// the caller accepts no more, before the connections have ended.
class ConnectionThreads : public httplib::TaskQueue {
 public:
  // Throws the error of StartThread.
  ConnectionThreads(int count, std::function<void()> on_shutdown)
      : count_(static_cast<size_t>(count)), on_shutdown_(std::move(on_shutdown)) {
    try {
      for (int i = 0; i < count; ++i) threads_.push_back(StartThread([this] { Work(); }));
    } catch (...) {
      StopAndJoin();
      throw;
    }
  }
  ~ConnectionThreads() override { StopAndJoin(); }
  void enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.size() < count_; });
    tasks_.push_back(std::move(task));
    lock.unlock();
    changed_.notify_all();
  }
  void shutdown() override {
    on_shutdown_();
    StopAndJoin();
  }

 private:
  void StopAndJoin() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void Work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopped_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      changed_.notify_all();
      task();
    }
  }

  const size_t count_;
  const std::function<void()> on_shutdown_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;
};

void Address(int (*get)(int, sockaddr*, socklen_t*), socket_t socket, std::string& ip, int& port) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (get(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
    ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    port = ntohs(v4->sin_port);
  } else {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
    ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    port = ntohs(v6->sin6_port);
  }
  ip = text;
}

}  // namespace

HttpConnection::HttpConnection(socket_t socket, const HttpLimits& limits)
    : socket_(socket), limits_(limits) {}

void HttpConnection::BeginRequest() {
  budget_ = limits_.max_header_bytes;
  deadline_ = Clock::now() + Seconds(limits_.request_seconds);
}

// Chunks may have as many bytes of their own as the body. The body itself is checked by its reader.
void HttpConnection::AllowBody() { budget_ = 2 * limits_.max_body_bytes + 4096; }

bool HttpConnection::Poll(short events, Clock::time_point until) const {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd entry = {.fd = socket_, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    return ready > 0 && (entry.revents & (events | POLLHUP)) != 0;
  }
}

bool HttpConnection::WaitForRequest(const std::function<bool()>& stop) {
  if (begin_ < buffer_.size()) return true;
  const auto until = Clock::now() + Seconds(limits_.idle_seconds);
  while (Clock::now() < until && !stop())
    if (Poll(POLLIN, std::min(until, Clock::now() + std::chrono::milliseconds(200))))
      return IsOpen();
  return false;
}

bool HttpConnection::IsOpen() const {
  pollfd entry = {.fd = socket_, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) == 0;
}

bool HttpConnection::is_readable() const {
  return begin_ < buffer_.size() || Poll(POLLIN, deadline_);
}

bool HttpConnection::is_writable() const {
  return IsOpen() && Poll(POLLOUT, Clock::now() + Seconds(limits_.write_seconds));
}

ssize_t HttpConnection::read(char* data, size_t size) {
  if (begin_ == buffer_.size()) {
    if (!Poll(POLLIN, deadline_)) return -1;
    buffer_.resize(4096);
    begin_ = 0;
    ssize_t received = 0;
    do received = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
    while (received < 0 && errno == EINTR);
    buffer_.resize(static_cast<size_t>(std::max<ssize_t>(received, 0)));
    if (received <= 0) return received;
  }
  const size_t count = std::min(size, buffer_.size() - begin_);
  budget_ -= static_cast<int64_t>(count);
  if (budget_ < 0) return -1;
  std::copy_n(buffer_.data() + begin_, count, data);
  begin_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t HttpConnection::write(const char* data, size_t size) {
  const auto until = Clock::now() + Seconds(limits_.write_seconds);
  size_t sent = 0;
  while (sent < size) {
    if (!Poll(POLLOUT, until)) return -1;
    const ssize_t more = ::send(socket_, data + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (more < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (more <= 0) return -1;
    sent += static_cast<size_t>(more);
  }
  return static_cast<ssize_t>(size);
}

void HttpConnection::get_remote_ip_and_port(std::string& ip, int& port) const {
  Address(&::getpeername, socket_, ip, port);
}
void HttpConnection::get_local_ip_and_port(std::string& ip, int& port) const {
  Address(&::getsockname, socket_, ip, port);
}

HttpServer::HttpServer(const HttpLimits& limits, const ErrorBody& error_body)
    : limits_(limits), error_body_(error_body) {
  new_task_queue = [this] { return threads_.release(); };
  set_tcp_nodelay(true);
  // The library only announces these limits to clients. process_and_close_socket() enforces them.
  set_keep_alive_timeout(static_cast<time_t>(limits_.idle_seconds));
  set_keep_alive_max_count(1'000'000'000);
  // The library's own options would let two servers share a port.
  set_socket_options([](socket_t socket) {
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  });
  // Before the library reads a body: for unknown paths and methods it would decompress the body in
  // memory.
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    const auto known = methods_.find(request.path);
    const bool is_head = request.method == "HEAD";
    if (known != methods_.end() && known->second == (is_head ? "GET" : request.method))
      return httplib::Server::HandlerResponse::Unhandled;
    response.status = 404;  // the error handler writes the body
    return httplib::Server::HandlerResponse::Handled;
  });
  // Errors of the library itself have no body.
  set_error_handler([this](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty()) return;
    CurrentConnection().CloseAfterResponse();
    response.set_header("Connection", "close");
    const auto known = methods_.find(request.path);
    std::string message = "The request is not valid HTTP.";
    if (response.status == 404 && known != methods_.end()) {
      response.status = 405;
      response.set_header("Allow", known->second);
      message = Concat("Use ", known->second, " for ", request.path, ".");
    } else if (response.status == 404) {
      std::vector<std::string> paths;
      for (const auto& [path, method] : methods_) paths.push_back(method + " " + path);
      message =
          Concat("There is no ", request.path.substr(0, 100), ". Use ", Join(paths, ", "), ".");
    } else if (response.status == 413) {
      message = Concat("The body is too large. Use at most ", limits_.max_body_bytes, " bytes.");
    } else if (response.status == 414) {
      message = "The path is too long. Use a shorter one.";
    } else if (response.status >= 500) {
      message = "The server failed. Its log has the cause.";
    }
    response.set_content(error_body_(response.status, message), "application/json");
  });
}

void HttpServer::Refuse(int status, const std::string& message, httplib::Response& response) {
  CurrentConnection().CloseAfterResponse();
  response.status = status;
  response.set_header("Connection", "close");
  response.set_content(error_body_(status, message), "application/json");
}

void HttpServer::Get(const std::string& path, const HttpHandler& handler) {
  methods_[path] = "GET";
  // The library interprets paths as regular expressions.
  const std::regex special(R"([.^$|()\[\]{}*+?\\])");
  httplib::Server::Get(
      std::regex_replace(path, special, R"(\$&)"),
      [this, handler](const httplib::Request& request, httplib::Response& response) {
        HttpConnection& connection = CurrentConnection();
        // The body of a GET is not read. It would be taken for the next request.
        if (request.has_header("Content-Length") || request.has_header("Transfer-Encoding"))
          connection.CloseAfterResponse();
        handler({.head = request, .body = {}, .connection = connection}, response);
      });
}

void HttpServer::Post(const std::string& path, const HttpHandler& handler) {
  methods_[path] = "POST";
  httplib::Server::Post(
      path, [this, handler](const httplib::Request& request, httplib::Response& response,
                            const httplib::ContentReader& reader) {
        std::string body;
        if (!ReadBody(request, reader, response, body)) return;
        handler({.head = request, .body = std::move(body), .connection = CurrentConnection()},
                response);
      });
}

bool HttpServer::ReadBody(const httplib::Request& request, const httplib::ContentReader& reader,
                          httplib::Response& response, std::string& body) {
  const std::string type = request.get_header_value("Content-Type");
  if (type.find("json") == std::string::npos)
    return Refuse(415, "The Content-Type is not JSON. Use Content-Type: application/json.",
                  response),
           false;
  if (request.has_header("Content-Encoding"))
    return Refuse(415, "The body has a Content-Encoding. Send it without compression.", response),
           false;
  const std::string too_large =
      Concat("The body is too large. Use at most ", limits_.max_body_bytes, " bytes.");
  const bool chunked = request.has_header("Transfer-Encoding");
  const std::string length = request.get_header_value("Content-Length");
  const bool is_number =
      !length.empty() && length.find_first_not_of("0123456789") == std::string::npos;
  if (!chunked && !is_number)
    return Refuse(411, "The request has no valid Content-Length. Send the number of bytes.",
                  response),
           false;
  if (chunked && !length.empty())
    return Refuse(400,
                  "The request has a Content-Length and a Transfer-Encoding. Send one of them.",
                  response),
           false;
  const int64_t most = limits_.max_body_bytes;
  if (!chunked && (length.size() > 18 || std::stoll(length) > most))
    return Refuse(413, too_large, response), false;
  bool fits = true;
  const bool read = reader([&](const char* data, size_t size) {
    fits = std::ssize(body) + static_cast<int64_t>(size) <= most;
    if (fits) body.append(data, size);
    return fits;
  });
  if (!fits) return Refuse(413, too_large, response), false;
  if (!read)
    return Refuse(400, "The body ended early or came too slowly. Send all bytes of it.", response),
           false;
  return true;
}

HttpConnection& HttpServer::CurrentConnection() {
  const std::lock_guard lock(mutex_);
  return *connections_.at(std::this_thread::get_id());
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  HttpConnection connection(socket, limits_);
  {
    const std::lock_guard lock(mutex_);
    connections_[std::this_thread::get_id()] = &connection;
  }
  const auto stop = [this] { return svr_sock_ == INVALID_SOCKET || accept_failed_; };
  bool closed = false;
  while (!closed && connection.WaitForRequest(stop)) {
    connection.BeginRequest();
    bool closes = false;
    const bool served = process_request(connection, /*close_connection=*/stop(), closes,
                                        [&](httplib::Request& request) {
                                          // The library would copy the answer once per range.
                                          request.ranges.clear();
                                          connection.AllowBody();
                                        });
    closed = !served || closes || connection.closes_after_response() || stop();
  }
  {
    const std::lock_guard lock(mutex_);
    connections_.erase(std::this_thread::get_id());
  }
  // Unread bytes would make close() reset the connection, and the client might lose the response.
  ::shutdown(socket, SHUT_WR);
  char ignored[4096];
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  for (int64_t left = 1 << 20; left > 0 && std::chrono::steady_clock::now() < until;) {
    pollfd entry = {.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, 100) < 0) break;
    const ssize_t received = ::recv(socket, ignored, sizeof ignored, MSG_DONTWAIT);
    if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR)) break;
    left -= std::max<ssize_t>(received, 0);
  }
  ::close(socket);
  return !closed;
}

int HttpServer::BindSocket(const std::string& host, int port) {
  const int bound = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
  HL_CHECK_AS(ExitCode::kEnvironment, bound > 0, "cannot listen at ", host, ":", port,
              ". Use an address of this machine and a free port, for example --port 0.");
  // The library listens with a backlog of 5: connections beyond it would be lost, not delayed.
  ::listen(svr_sock_, 1024);
  return bound;
}

int HttpServer::Bind(const std::string& host, int port) {
  const int bound = BindSocket(host, port);
  // The library would start the threads within Listen(), whose thread cannot report an error.
  threads_ = std::make_unique<ConnectionThreads>(limits_.max_connections, [this] {
    // The library marks the socket as invalid only in stop(). When accept() fails for another
    // reason than too many open files of this process, it closes the socket and ends its loop.
    accept_failed_ = svr_sock_ != INVALID_SOCKET;
  });
  return bound;
}

void HttpServer::RequireFree(const std::string& host, int port) {
  HttpServer probe({}, {});
  probe.BindSocket(host, port);
  ::close(probe.svr_sock_);
}

void HttpServer::Listen() {
  listen_after_bind();
  ended_ = true;
}

// The library ignores stop() until it listens. After a failed accept() it would close the socket
// again, whose number may by then be that of a connection.
void HttpServer::Stop() {
  while (!is_running() && !ended_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (!ended_ && !accept_failed_) stop();
}

}  // namespace halflife::serve
