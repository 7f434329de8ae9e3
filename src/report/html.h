// The few pieces of HTML that the report is made of. All text from files goes through Escape, and
// paths in links through UrlOfPath.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halflife::report {

// The result may stand as text and as an attribute's value in double quotes. Bytes that are not
// UTF-8 become U+FFFD, control characters too.
std::string Escape(std::string_view text);

// A path as a relative URL, for an attribute in double quotes: every byte that is not a letter, a
// digit or one of -_.~/=,+@ is percent-encoded.
std::string UrlOfPath(std::string_view path);

// A JSON string literal that may stand inside <script>.
std::string JsonString(std::string_view text);

}  // namespace halflife::report
