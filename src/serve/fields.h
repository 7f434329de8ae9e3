// Reads the fields of a request's JSON object. Every problem is an ApiError 400 that names the
// field, what it is and what it may be.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace halflife::serve {

// An error of a request, as the client receives it. The body has OpenAI's form:
// {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}.
class ApiError : public std::runtime_error {
 public:
  // `param`: the field of the request; empty: null. `code`: a name for programs; empty: null.
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
      : std::runtime_error(message),
        status_(status),
        param_(std::move(param)),
        code_(std::move(code)) {}

  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }
  // "invalid_request_error" for 4xx and "server_error" for 5xx.
  const char* type() const { return status_ < 500 ? "invalid_request_error" : "server_error"; }
  std::string Body() const;

 private:
  int status_;
  std::string param_, code_;
};

class Fields {
 public:
  // Parses the body.
  explicit Fields(const std::string& body);
  ~Fields();
  Fields(Fields&&) noexcept;
  // Reads an object inside another one. `path` is its place in messages, for example "messages[2]".
  Fields(const nlohmann::json& object, std::string path);

  // Returns the value of a field, or null if it is absent or JSON null. Clients send null for
  // defaults.
  const nlohmann::json* Find(const std::string& name);
  const nlohmann::json& Require(const std::string& name, const std::string& what);
  std::optional<std::string> String(const std::string& name);
  std::optional<bool> Boolean(const std::string& name);
  std::optional<int64_t> Integer(const std::string& name, int64_t least, int64_t most);
  std::optional<double> Number(const std::string& name, double least, double most);
  // Reads a string, or a list of at most `most` strings. None may be empty.
  std::vector<std::string> Strings(const std::string& name, size_t most);
  // Requires that a field of OpenAI's API that this server does not implement is absent or has this
  // value.
  void Only(const std::string& name, const nlohmann::json& value);
  // Accepts fields that have no effect in this server.
  void Ignore(const std::vector<std::string>& names);
  // Call it last. Throws for fields that were not read and are not null.
  void RejectOthers() const;

  std::string PathOf(const std::string& name) const;
  [[noreturn]] void Refuse(const std::string& name, const std::string& problem) const;

 private:
  struct Json;
  std::unique_ptr<Json> json_;
  std::string path_;
  std::vector<std::string> known_;
};

// Returns a short form of a value, for messages.
std::string Shown(const nlohmann::json& value);

}  // namespace halflife::serve
