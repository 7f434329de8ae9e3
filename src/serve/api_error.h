// An error of a request, as the client receives it. The body has OpenAI's form:
// {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}.
#pragma once

#include <stdexcept>
#include <string>

namespace halflife::serve {

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

}  // namespace halflife::serve
