// JSON for people: "key: value" lines, objects indented, lists of objects as tables, bytes in
// units.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace halflife::cli::inspect {

// Control characters, which a hostile file could steer a terminal with, come out as \xNN.
std::string Printable(const std::string& text);
std::string Render(const nlohmann::ordered_json& object);

}  // namespace halflife::cli::inspect
