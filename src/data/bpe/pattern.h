// Patterns of the tokenizers library, which are Oniguruma's with its Ruby syntax, in PCRE2's terms.
//
// The two agree on what real tokenizers use, and differ silently elsewhere: \h is a hexadecimal
// digit there and a blank here, {1,3}+ repeats there and is possessive here, \s knows U+180E only
// here. So what is known to mean the same is translated, and everything else is refused by name.
// One difference remains: characters newer than PCRE2's Unicode tables (14 in Debian 12) have no
// category here.
#pragma once

#include <string>
#include <string_view>

namespace halflife::data {

// Error kData names what is not supported and where.
std::string TranslatePattern(std::string_view pattern);

}  // namespace halflife::data
