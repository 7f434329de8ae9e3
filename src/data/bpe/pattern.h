// Translates patterns of the tokenizers library, which are Oniguruma patterns with Ruby syntax, to
// PCRE2.
//
// The two agree on everything that real tokenizers use, but silently differ elsewhere. For example,
// \h is a hexadecimal digit in Oniguruma and a blank in PCRE2, {1,3}+ repeats in Oniguruma and is
// possessive in PCRE2, and only PCRE2's \s contains U+180E. TranslatePattern therefore translates
// only constructs that are known to mean the same and rejects all others by name. One difference
// remains: characters newer than PCRE2's Unicode tables (version 14 in Debian 12) have no category
// here.
#pragma once

#include <string>
#include <string_view>

namespace halflife::data {

// Throws Error kData, naming the unsupported construct and its position.
std::string TranslatePattern(std::string_view pattern);

}  // namespace halflife::data
