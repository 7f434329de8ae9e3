#include "data/bpe/normalization.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/error.h"

namespace halflife::data {

std::string NormalizeNfc(std::string_view text) {
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &bytes,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(bytes, &std::free);
  HL_CHECK(size >= 0, "cannot normalise a text of ", text.size(),
           " bytes: ", utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)};
}

bool IsPlainlyNfc(std::string_view text) {
  constexpr uint8_t kLeadOf0300 = 0xCC;
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<uint8_t>(c) >= kLeadOf0300; });
}

}  // namespace halflife::data
