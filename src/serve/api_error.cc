#include "serve/api_error.h"

#include <nlohmann/json.hpp>

#include "core/json_text.h"

namespace halflife::serve {

std::string ApiError::Body() const {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  return JsonText({{"error",
                    {{"message", what()},
                     {"type", type()},
                     {"param", text_or_null(param_)},
                     {"code", text_or_null(code_)}}}}) +
         "\n";
}

}  // namespace halflife::serve
