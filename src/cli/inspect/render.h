// Formats JSON for people: "key: value" lines, indented objects, lists of objects as tables, bytes
// with units.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace halflife::cli::inspect {

// Replaces control characters, with which a hostile file could control a terminal, by \xNN.
std::string Printable(const std::string& text);
std::string Render(const nlohmann::ordered_json& object);

}  // namespace halflife::cli::inspect
