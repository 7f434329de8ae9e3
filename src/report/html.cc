#include "report/html.h"

#include <cctype>
#include <nlohmann/json.hpp>

#include "core/concat.h"

namespace halflife::report {
namespace {

// The JSON library replaces bytes that are not UTF-8.
std::string ValidUtf8(std::string_view text) {
  const std::string json = nlohmann::json(std::string(text))
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(json).get<std::string>();
}

}  // namespace

std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : ValidUtf8(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default: {
        const auto byte = static_cast<unsigned char>(c);
        const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
        out += control ? std::string("\xEF\xBF\xBD") : std::string(1, c);
      }
    }
  }
  return out;
}

std::string UrlOfPath(std::string_view path) {
  constexpr std::string_view kKept = "-_.~/=,+@";
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string url;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 0x80 && (std::isalnum(byte) != 0 || kKept.find(c) != kKept.npos);
    url += plain ? std::string(1, c) : Concat("%", kHex[byte >> 4], kHex[byte & 15]);
  }
  return url;
}

std::string JsonString(std::string_view text) {
  const std::string json = nlohmann::json(std::string(text))
                               .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  std::string out;
  for (const char c : json) {
    if (c == '<' || c == '>' || c == '&') {
      out += c == '<' ? "\\u003c" : c == '>' ? "\\u003e" : "\\u0026";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace halflife::report
