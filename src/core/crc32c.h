// CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected, as in RFC 3720 B.4), the checksum of
// TFRecord files.
#pragma once

#include <cstdint>
#include <string_view>

namespace halflife {

uint32_t Crc32c(std::string_view bytes);

}  // namespace halflife
