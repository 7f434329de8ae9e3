// Numbers for people: "3.2 GiB", "12.4k", "1 h 02 min".
#pragma once

#include <cstdint>
#include <string>

namespace halflife {

std::string HumanBytes(uint64_t bytes);
std::string HumanCount(double count);
std::string HumanSeconds(double seconds);
std::string Fixed(double value, int digits);  // fixed decimals

}  // namespace halflife
