// An HTTP server on cpp-httplib that adds what the library lacks: limits on the bytes and seconds
// of a request while its header and chunks are read, a limit on connections, and a way to see that
// the client of a running request has closed its connection.
//
//   HttpServer server({.max_body_bytes = 1 << 20},
//                     [](int, const std::string& message) { return message; });
//   server.Post("/echo", [](const HttpRequest& request, httplib::Response& response) {
//     response.set_content(request.body, "text/plain");
//   });
//   const int port = server.Bind("127.0.0.1", 0);
//   server.Listen();  // Until Stop().
#pragma once

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace halflife::serve {

struct HttpLimits {
  int64_t max_body_bytes = int64_t{8} << 20;
  int64_t max_header_bytes = 32 << 10;  // The request line and all headers.
  int max_connections = 256;            // Further ones wait to be accepted.
  double request_seconds = 20;          // To receive a request.
  double idle_seconds = 5;              // Limit for a connection between two requests.
  double write_seconds = 20;            // Limit for a client that does not read.
};

// A connection of a client, as the thread that serves it sees it.
class HttpConnection : public httplib::Stream {
 public:
  // Borrows the socket.
  HttpConnection(socket_t socket, const HttpLimits& limits);

  // Begins a new request: its header has limits of its own.
  void BeginRequest();
  // Call when the header is complete and the body may follow.
  void AllowBody();
  // Waits until the client sends a byte. Returns false after idle_seconds, or if it has gone or
  // `stop` returns true.
  bool WaitForRequest(const std::function<bool()>& stop);
  // Returns false once the client has closed the connection.
  bool IsOpen() const;
  // Closes the connection after this response, because a part of the request was not read.
  void CloseAfterResponse() { close_after_response_ = true; }
  bool closes_after_response() const { return close_after_response_; }

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;
  // Polls for the events until the time. Returns false at the time or if the connection failed.
  bool Poll(short events, Clock::time_point until) const;

  socket_t socket_;
  HttpLimits limits_;
  std::string buffer_;  // Bytes that were received and not read.
  size_t begin_ = 0;
  int64_t budget_ = 0;  // Bytes that this request may still read.
  Clock::time_point deadline_;
  bool close_after_response_ = false;
};

struct HttpRequest {
  const httplib::Request& head;
  std::string body;
  HttpConnection& connection;
};

class HttpServer : private httplib::Server {
 public:
  using HttpHandler = std::function<void(const HttpRequest& request, httplib::Response& response)>;
  // Turns a status and a message into the body of an error.
  using ErrorBody = std::function<std::string(int status, const std::string& message)>;

  HttpServer(const HttpLimits& limits, const ErrorBody& error_body);

  void Get(const std::string& path, const HttpHandler& handler);
  // Reads the body, which must be JSON by its Content-Type.
  void Post(const std::string& path, const HttpHandler& handler);
  // Starts the threads of the connections and returns the port. 0: any. Throws Error kEnvironment
  // if the port is not free, or if the system cannot start the threads.
  int Bind(const std::string& host, int port);
  // Throws if the port is not free, for callers that load a model between this check and Bind().
  static void RequireFree(const std::string& host, int port);
  // Serves until Stop() was called, or no connection can be accepted any more, and all running
  // requests are answered.
  void Listen();
  // Returns true once connections are no longer accepted although Stop() was not called. Running
  // requests may still be on the way.
  bool accept_failed() const { return accept_failed_; }
  // Returns at once if Listen() has ended or accept_failed().
  void Stop();

 private:
  int BindSocket(const std::string& host, int port);
  bool process_and_close_socket(socket_t socket) override;
  HttpConnection& CurrentConnection();
  // Reads the body of a request. Returns false after an error, which is in the response.
  bool ReadBody(const httplib::Request& request, const httplib::ContentReader& reader,
                httplib::Response& response, std::string& body);
  void Refuse(int status, const std::string& message, httplib::Response& response);

  HttpLimits limits_;
  ErrorBody error_body_;
  std::map<std::string, std::string> methods_;  // The method of each path.
  std::atomic<bool> ended_ = false;
  std::atomic<bool> accept_failed_ = false;
  std::mutex mutex_;
  std::map<std::thread::id, HttpConnection*> connections_;
  std::unique_ptr<httplib::TaskQueue> threads_;  // From Bind() until Listen().
};

}  // namespace halflife::serve
